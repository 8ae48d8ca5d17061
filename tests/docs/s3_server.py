"""A server of S3's API, S3Proxy over a directory, in a process of its own. It checks the signatures of requests."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from patience import PATIENCE_S

from helenus_stack.jars import fetch, parse_lock
from helenus_stack.java import java_home
from helenus_stack.progress import Silent
from helenus_stack.resolve import resolve

LOCK = Path(__file__).with_name("s3proxy.lock")
BUCKET, REGION, LOGIN, PASSWORD = "lake", "us-east-1", "helenus", "s3cret"


HADOOP_AWS = Path(__file__).with_name("hadoop_aws.lock")
MINICLUSTER = Path(__file__).with_name("hadoop_minicluster.lock")


@dataclass
class S3Server:
    """A server: its address, and the options by which clients of other makers reach it. It may be stopped for a
    while.
    """

    address: str
    directory: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return when it answers."""
        (jar,) = fetch(parse_lock(LOCK.read_text(), LOCK.name), Silent(), resolve)
        java = str(java_home(17, Silent(), newer=True) / "bin/java")
        file, log_file = self.directory / "s3proxy.properties", self.directory / "s3proxy.log"
        command = [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-jar", str(jar), "--properties", str(file)]
        with open(log_file, "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            _wait_for(self.address, self.process, log_file)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it, as a machine that fails. The bucket stays."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @property
    def of_spark(self) -> dict[str, str]:
        jars = fetch(parse_lock(HADOOP_AWS.read_text(), HADOOP_AWS.name), Silent(), resolve)
        return {
            "spark.driver.extraClassPath": ":".join(map(str, jars)),
            "spark.hadoop.fs.s3a.endpoint": f"http://{self.address}",
            "spark.hadoop.fs.s3a.endpoint.region": REGION,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": LOGIN,
            "spark.hadoop.fs.s3a.secret.key": PASSWORD,
        }

    @property
    def of_pyarrow(self) -> dict[str, str]:
        return {
            "endpoint_override": self.address,
            "scheme": "http",
            "region": REGION,
            "access_key": LOGIN,
            "secret_key": PASSWORD,
        }

    @property
    def of_delta(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://{self.address}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": LOGIN,
            "AWS_SECRET_ACCESS_KEY": PASSWORD,
        }

    @property
    def of_iceberg(self) -> dict[str, str]:
        return {
            "s3.endpoint": f"http://{self.address}",
            "s3.region": REGION,
            "s3.access-key-id": LOGIN,
            "s3.secret-access-key": PASSWORD,
        }


@contextmanager
def running_s3(directory: Path) -> Iterator[S3Server]:
    """Start a server with its bucket in a directory, and end it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (directory / "data" / BUCKET).mkdir(parents=True)
    properties = {
        "s3proxy.endpoint": f"http://{address}",
        "s3proxy.authorization": "aws-v4",
        "s3proxy.identity": LOGIN,
        "s3proxy.credential": PASSWORD,
        "jclouds.provider": "filesystem-nio2",
        "jclouds.filesystem.basedir": str(directory / "data"),
    }
    file = directory / "s3proxy.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    server = S3Server(address, directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    host, _, port = address.partition(":")
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection((host, int(port)), 5).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(log.read_text()[-3000:])
