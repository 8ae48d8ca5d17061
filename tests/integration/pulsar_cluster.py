"""A Pulsar cluster as small as it can be: ZooKeeper, a bookie and two brokers, of the jars of the stack's Pulsar."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from integration.pipeline import _end_with_parent, free_port
from patience import PATIENCE_S, eventually

from helenus_stack.jars import fetch, read_lock, unpack
from helenus_stack.java import java_home
from helenus_stack.process import STOP_SECONDS
from helenus_stack.progress import Silent
from helenus_stack.pulsar import OPENED, VERSIONS
from helenus_stack.resolve import resolve
from helenus_stack.server import classpath, own_temporary_folder
from helenus_stack.settings import Settings

BROKERS = ("broker1", "broker2")
NAMESPACE = "public/default"
SESSION_MS = 8000
"""After that long without a broker's heartbeats, the other one takes its topics. As short as a busy machine allows."""
DRIVERS = "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata"


class PulsarCluster:
    """As a context manager it is up inside. A `server` is zookeeper, bookie, or one of `BROKERS`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.zookeeper_port, self.bookie_port = free_port(), free_port()
        self.ports = {broker: free_port() for broker in BROKERS}
        self.web_ports = {broker: free_port() for broker in BROKERS}
        self._java = java_home(17, Silent())
        (archive,) = fetch(read_lock(VERSIONS[Settings().pulsar]), Silent(), resolve)
        (self._home,) = unpack(archive, Silent()).iterdir()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def service_url(self) -> str:
        return "pulsar://" + ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def admin_url(self, broker: str = BROKERS[0]) -> str:
        return f"http://127.0.0.1:{self.web_ports[broker]}"

    @property
    def metadata(self) -> str:
        return f"zk:127.0.0.1:{self.zookeeper_port}"

    def __enter__(self) -> PulsarCluster:
        try:
            self._start("zookeeper", "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self._zookeeper_file()))
            self._set_up()
            drivers = [
                f"-Dbookkeeper.metadata.{side.lower()}.drivers={DRIVERS}{side}Driver" for side in ("Bookie", "Client")
            ]
            main = "org.apache.bookkeeper.server.Main"
            self._start("bookie", *drivers, main, "--conf", str(self._bookie_file()))
            for broker in BROKERS:
                self.start(broker)
            for broker in BROKERS:
                self.wait_ready(broker)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in reversed(self._processes):
            self.kill(server)

    def start(self, broker: str) -> None:
        """Start a broker."""
        file = str(self._broker_file(broker))
        self._start(broker, "org.apache.pulsar.PulsarBrokerStarter", "--broker-conf", file)

    def stop(self, server: str) -> None:
        """SIGTERM: a broker hands its topics over before it ends."""
        self._processes[server].terminate()
        self._processes[server].wait(PATIENCE_S)

    def kill(self, server: str) -> None:
        """kill -9."""
        self._processes[server].kill()
        self._processes[server].wait()

    def wait_ready(self, broker: str) -> None:
        """Wait until a broker serves, and all see it."""
        name = f"127.0.0.1:{self.web_ports[broker]}"

        def is_ready() -> bool:
            assert self._processes[broker].poll() is None, self.tail(broker)
            with suppress(OSError):
                return name in self.ask(broker, "admin/v2/brokers") and bool(
                    self.ask(broker, "admin/v2/namespaces/public")
                )
            return False

        eventually(is_ready, lambda: f"{broker} is ready; its log ends:\n{self.tail(broker)}")

    def live_brokers(self, server: str) -> set[str]:
        """The brokers that live, as one of them knows them."""
        names = self.ask(server, "admin/v2/brokers")
        return {broker for broker in BROKERS if f"127.0.0.1:{self.web_ports[broker]}" in names}

    def owner(self, topic: str, server: str) -> str:
        """The broker that has a topic, or a partition of one, as this one says: it chooses one now if none has it."""
        url = self.ask(server, f"lookup/v2/topic/persistent/{NAMESPACE}/{topic}")["brokerUrl"]
        return next(broker for broker, port in self.ports.items() if url.endswith(f":{port}"))

    def move(self, topic: str, broker: str) -> None:
        """Have a broker own a topic, or a partition of one, with all others in its bundle."""
        if self.owner(topic, broker) != broker:
            bundle = self.ask(broker, f"lookup/v2/topic/persistent/{NAMESPACE}/{topic}/bundle")
            destination = f"127.0.0.1:{self.web_ports[broker]}"
            path = f"admin/v2/namespaces/{NAMESPACE}/{bundle}/unload?destinationBroker={destination}"
            self.ask(broker, path, "PUT")

    def spread(self, topic: str, partitions: int) -> None:
        """Have each broker own every other partition, as far as bundles of partitions allow."""
        for number in range(partitions):
            self.move(f"{topic}-partition-{number}", BROKERS[number % 2])

    def ask(self, broker: str, path: str, method: str = "GET") -> Any:
        """A broker's answer over REST, as JSON or text. Raises OSError."""
        url = f"{self.admin_url(broker)}/{path}"
        for _ in range(5):  # urllib follows no redirect of a PUT
            request = urllib.request.Request(url, method=method, headers={"Accept": "application/json, text/plain"})
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    text = answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    if error.code != 307:
                        raise
                    url = error.headers["Location"]
                continue
            try:
                return json.loads(text)
            except ValueError:
                return text
        raise OSError(f"{url} redirects too often")

    def tail(self, server: str, lines: int = 30) -> str:
        return "\n".join((self.directory / f"{server}.log").read_text(errors="replace").splitlines()[-lines:])

    def _set_up(self) -> None:
        web, service = ",".join(f"127.0.0.1:{port}" for port in self.web_ports.values()), self.service_url
        arguments = [
            "--cluster",
            "two",
            "--metadata-store",
            self.metadata,
            "--configuration-metadata-store",
            self.metadata,
        ]
        arguments += ["--web-service-url", f"http://{web}", "--broker-service-url", service]
        self._start("setup", "org.apache.pulsar.PulsarClusterMetadataSetup", *arguments)
        assert self._processes.pop("setup").wait(PATIENCE_S) == 0, self.tail("setup")

    def _start(self, server: str, *arguments: str) -> None:
        folder = self.directory / server
        folder.mkdir(parents=True, exist_ok=True)
        memory = ["-Xmx256m", "-XX:MaxDirectMemorySize=192m"]
        options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"]
        options += [own_temporary_folder(folder), f"-Dlog4j.configurationFile={self._home / 'conf' / 'log4j2.yaml'}"]
        options += ["-Dpulsar.routing.appender.default=Console", f"-Dpulsar.log.dir={folder / 'logs'}"]
        options += ["-Dio.netty.tryReflectionSetAccessible=true", "-Dzookeeper.admin.enableServer=false"]
        options += [word for module in OPENED for word in ("--add-opens", f"{module}=ALL-UNNAMED")]
        with (self.directory / f"{server}.log").open("ab") as log:
            self._processes[server] = subprocess.Popen(
                [str(self._java / "bin/java"), *memory, *options, *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=classpath(sorted((self._home / "lib").glob("*.jar"))),
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def _zookeeper_file(self) -> Path:
        values = {"dataDir": self.directory / "zookeeper" / "data", "clientPort": self.zookeeper_port}
        # Sessions may be as short as four seconds.
        more = {"clientPortAddress": "127.0.0.1", "tickTime": 2000, "admin.enableServer": "false"}
        return self._write("zookeeper", values | more)

    def _bookie_file(self) -> Path:
        folder = self.directory / "bookie"
        own = {
            "bookiePort": self.bookie_port,
            "advertisedAddress": "127.0.0.1",
            "allowLoopback": "true",
            "metadataServiceUri": f"metadata-store:{self.metadata}",
            "journalDirectory": folder / "journal",
            "ledgerDirectories": folder / "ledgers",
            "autoRecoveryDaemonEnabled": "false",
            "enableStatistics": "false",
            "entryLogFilePreallocationEnabled": "false",
            "dbStorage_writeCacheMaxSizeMb": 32,
            "dbStorage_readAheadCacheMaxSizeMb": 16,
            "dbStorage_rocksDB_blockCacheSize": 16 << 20,
        }
        return self._write("bookie", own, self._home / "conf" / "bookkeeper.conf")

    def _broker_file(self, broker: str) -> Path:
        own = {
            "metadataStoreUrl": self.metadata,
            "configurationMetadataStoreUrl": self.metadata,
            "metadataStoreSessionTimeoutMillis": SESSION_MS,
            "clusterName": "two",
            "brokerServicePort": self.ports[broker],
            "webServicePort": self.web_ports[broker],
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "brokerShutdownTimeoutMs": int(STOP_SECONDS * 1000),
            **dict.fromkeys(
                (f"managedLedgerDefault{size}" for size in ("EnsembleSize", "WriteQuorum", "AckQuorum")), 1
            ),
            # As the stack's Pulsar.
            "allowAutoTopicCreation": "false",
            "schemaCompatibilityStrategy": "BACKWARD_TRANSITIVE",
            "topicCompactionRetainNullKey": "true",
        }
        return self._write(broker, own, self._home / "conf" / "broker.conf")

    def _write(self, server: str, own: Mapping[str, object], theirs: Path | None = None) -> Path:
        """A server's file: a file of theirs with other values of our own."""
        lines = theirs.read_text().splitlines() if theirs else []
        lines = [line for line in lines if line.partition("=")[0].strip() not in own]
        file = self.directory / f"{server}.conf"
        file.write_text("".join(f"{line}\n" for line in [*lines, *(f"{key}={value}" for key, value in own.items())]))
        return file
