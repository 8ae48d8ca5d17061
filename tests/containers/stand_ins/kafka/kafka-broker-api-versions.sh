#!/usr/bin/python3
"""Of kafka-broker-api-versions.sh what the compose file uses: ask a broker which versions it speaks."""

import argparse
import socket
import struct

parser = argparse.ArgumentParser()
parser.add_argument("--bootstrap-server", required=True)
host, _, port = parser.parse_args().bootstrap_server.rpartition(":")
with socket.create_connection((host, int(port)), 10) as broker:
    asked = struct.pack(">hhih", 18, 0, 1, -1)  # ApiVersions, version 0, the call's number, no client's name
    broker.sendall(struct.pack(">i", len(asked)) + asked)
    size, number, error = struct.unpack(">iih", broker.recv(10, socket.MSG_WAITALL))
assert (number, error) == (1, 0), (size, number, error)
