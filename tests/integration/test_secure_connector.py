"""The whole path on TLS and passwords, with the least rights: it works, shows no secret, and explains every mistake."""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import attacks
import pytest
import trustme
from bench import processes
from compose.test_observability import expressions
from confluent_kafka import Consumer, TopicPartition
from integration.pipeline import free_port, script, write_properties
from patience import PATIENCE_S, eventually
from spark_start import java_options

from helenus_connector.rest.client import WorkerClient
from helenus_schemas.service.cassandra import connect
from helenus_schemas.settings.shared import CassandraSettings
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Silent
from helenus_stack.records import Decoder
from helenus_stack.secure import AGENT, CONNECTOR, STRANGER
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),  # a machine that does other things too
    # The driver's event loop is ended by its own thread, which leaves warnings of no interest.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

WRONG = "n0t-the-passw0rd"
REST_PASSWORD, REGISTRY_PASSWORD, STORE_KEY = "r3st-passw0rd", "r3gistry-passw0rd", "st0re-key-0f-spark"
ROWS = 50
LATER = ("helenus_connector_errors_total", "helenus_agent_retries_total", "helenus_agent_skipped_total")


class Guarded:
    """A registry behind TLS and a password: what a reverse proxy is, in front of the stack's."""

    def __init__(self, registry_url: str, authority: trustme.CA) -> None:
        login = "Basic " + base64.b64encode(f"helenus:{REGISTRY_PASSWORD}".encode()).decode()

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                if self.headers.get("Authorization") != login:
                    self.send_response(401)
                    self.end_headers()
                    return
                size = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(size) if size else None
                request = urllib.request.Request(registry_url + self.path, data=body, method=self.command)
                request.add_header("Content-Type", self.headers.get("Content-Type") or "application/json")
                try:
                    with urllib.request.urlopen(request, timeout=10) as answer:
                        status, content = answer.status, answer.read()
                except urllib.error.HTTPError as error:
                    with error:
                        status, content = error.code, error.read()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = answer  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # handshakes are meant to fail
        self.url = f"https://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module")
def status(secure: Stack) -> Status:
    return secure.status()


@pytest.fixture(scope="module")
def session(status: Status) -> Iterator[Any]:
    session = connect(CassandraSettings.from_properties(status.cassandra(), "status"))
    session.execute("CREATE KEYSPACE safe WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    session.execute("CREATE TABLE safe.t (a int PRIMARY KEY, v text) WITH cdc = true")
    session.execute("CREATE TABLE safe.other (a int PRIMARY KEY, v text) WITH cdc = true")
    # What docs/security.md says, for one table alone.
    session.execute(f"REVOKE SELECT ON ALL KEYSPACES FROM {CONNECTOR}")
    session.execute(f"GRANT SELECT ON safe.t TO {CONNECTOR}")
    yield session
    session.cluster.shutdown()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[trustme.CA, Path]:
    """Who signs for the registry and the REST API."""
    authority = trustme.CA()
    path = tmp_path_factory.mktemp("authority") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return authority, path


@pytest.fixture(scope="module")
def registry(status: Status, authority: tuple[trustme.CA, Path]) -> Iterator[str]:
    guarded = Guarded(status.registry_url, authority[0])
    yield guarded.url
    guarded.close()


@pytest.fixture
def files(
    status: Status, registry: str, authority: tuple[trustme.CA, Path], tmp_path: Path
) -> Callable[[str, Mapping[str, str | None]], list[str]]:
    """Makes a worker's and a connector's file in a folder, as docs/security.md has them; with changes, None removes."""
    assert status.security
    passwords, cafile = status.security.passwords, status.security.cafile
    secrets = tmp_path / "secrets.properties"
    secrets.write_text(f"rest=ops:{REST_PASSWORD}\nregistry=helenus:{REGISTRY_PASSWORD}\nstore={STORE_KEY}\n")
    rest_certificate = authority[0].issue_cert("127.0.0.1")
    rest_certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "rest.pem"))

    def make(name: str, changes: Mapping[str, str | None]) -> list[str]:
        folder = tmp_path / name
        folder.mkdir()
        worker = {
            "bootstrap.servers": status.bootstrap_servers,
            "checkpoint.dir": folder / "checkpoint",
            "listeners": f"https://127.0.0.1:{free_port()}",
            "listeners.https.ssl.certfile": tmp_path / "rest.pem",
            "listeners.https.ssl.keyfile": tmp_path / "rest.pem",
            "rest.basic.auth.user.info": f"${{file:{secrets}:rest}}",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.ca.location": cafile,
            "kafka.sasl.mechanisms": "SCRAM-SHA-512",
            "kafka.sasl.username": CONNECTOR,
            "kafka.sasl.password": f"${{file:{passwords}:{CONNECTOR}}}",
            "spark.master": "local[1,4]",
            "spark.driver.extraJavaOptions": java_options(),
            "spark.local.dir": folder / "scratch",
            "spark.hadoop.fs.s3a.secret.key": f"${{file:{secrets}:store}}",
            "log.level": "debug",
        }
        table = {
            "name": "safe-t",
            "keyspace": "safe",
            "table": "t",
            "cassandra.contact.points": ",".join(status.contact_points),
            "cassandra.port": str(status.cql_port),
            "cassandra.local.dc": status.local_dc,
            "cassandra.ssl.enabled": "true",
            "cassandra.ssl.cafile": cafile,
            "cassandra.username": CONNECTOR,
            "cassandra.password": f"${{file:{passwords}:{CONNECTOR}}}",
            "value.converter.schema.registry.url": registry,
            "value.converter.schema.registry.ssl.cafile": authority[1],
            "value.converter.schema.registry.basic.auth.user.info": f"${{file:{secrets}:registry}}",
        }
        for key, value in changes.items():
            properties = worker if key.partition(".")[0] in ("group", "kafka", "listeners", "rest", "spark") else table
            properties[key] = value
        return [
            str(write_properties(folder / f"{name}.properties", {k: v for k, v in keys.items() if v is not None}))
            for name, keys in (("worker", worker), ("table", table))
        ]

    return make


def environment() -> dict[str, str]:
    return {**os.environ, "JAVA_HOME": str(spark_java_home(Silent()))}


def secrets_of(status: Status) -> list[str]:
    assert status.security
    users = [status.security.password(user) for user in (AGENT, CONNECTOR, STRANGER, "admin")]
    return [*users, REST_PASSWORD, REGISTRY_PASSWORD, STORE_KEY, WRONG]


def values(status: Status) -> dict[int, str | None]:
    """The last value of v by key in the data topic, read as an administrator."""
    decoder = Decoder(status.registry_url)
    consumer = Consumer({**status.kafka(), "group.id": "test", "enable.partition.eof": "true"})
    values_by_key: dict[int, str | None] = {}
    try:
        topic = consumer.list_topics(timeout=10).topics.get("data-safe.t")
        for number in topic.partitions if topic else ():
            partition = TopicPartition("data-safe.t", number, 0)
            _, end = consumer.get_watermark_offsets(partition, timeout=10)
            consumer.assign([partition])
            offset = 0
            while offset < end:
                for message in consumer.consume(end - offset, timeout=1):
                    offset = message.offset() + (message.error() is None)
                    if message.error() is not None:  # the end: that of a transaction takes an offset
                        continue
                    record = decoder.record(message)
                    values_by_key[record.key["a"]] = record.value and record.value["v"]
    finally:
        consumer.close()
        decoder.close()
    return values_by_key


def test_the_whole_path_and_no_secret_is_seen(
    status: Status,
    session: Any,
    files: Callable[[str, Mapping[str, str | None]], list[str]],
    authority: tuple[trustme.CA, Path],
    tmp_path: Path,
) -> None:
    assert status.security
    own = {
        "cassandra.config": status.nodes[0].cassandra_yaml,
        "cassandra.contact.points": status.nodes[0].address,
        "cassandra.port": str(status.cql_port),
        "cassandra.ssl.enabled": "true",
        "cassandra.ssl.cafile": status.security.cafile,
        "cassandra.username": AGENT,
        "cassandra.password": f"${{file:{status.security.passwords}:{AGENT}}}",
        "kafka.bootstrap.servers": status.bootstrap_servers,
        **{f"kafka.producer.{key}": value for key, value in status.security.kafka(AGENT).items()},
        "kafka.producer.sasl.password": f"${{file:{status.security.passwords}:{AGENT}}}",
        "state.dir": tmp_path / "state",
        "http.port": free_port(),
    }
    agent_file = write_properties(tmp_path / "agent.properties", own)
    # What a group, and to publish exactly once, take beyond the rest: topics, and the rights on them.
    worker_file, table_file = files("whole", {"group.id": "helenus-safe"})
    listener = re.search("listeners=(.*)", Path(worker_file).read_text())[1]  # type: ignore[index]
    for number in range(ROWS):
        session.execute("INSERT INTO safe.t (a, v) VALUES (%s, %s)", (number, f"v{number}"))
    session.execute("DELETE FROM safe.t WHERE a = 0")
    wanted = {0: None, **{number: f"v{number}" for number in range(1, ROWS)}}
    logs = [tmp_path / "agent.log", tmp_path / "connector.log"]
    started = [
        subprocess.Popen([script("helenus-agent"), str(agent_file)], stderr=logs[0].open("wb")),
        subprocess.Popen(
            [script("helenus-connector"), worker_file, table_file], stderr=logs[1].open("wb"), env=environment()
        ),
    ]
    texts: list[str] = []
    try:
        try:
            eventually(lambda: values(status) == wanted, "the topic shows the rows")
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *(log.read_text()[-3000:] for log in logs)])) from None
        seen = b"".join(processes.contents(p, "cmdline") for process in started for p in processes.family(process.pid))
        assert b"java" in seen
        # The connector's own environment held none; so none of its children's may.
        seen += b"".join(processes.contents(p, "environ") for p in processes.family(started[1].pid))
        texts.append(seen.decode(errors="replace"))
        worker = WorkerClient(listener, f"ops:{REST_PASSWORD}", authority[1])
        texts += [worker.get("/connectors?expand=status&expand=info"), worker.get("/connectors/safe-t/config")]
        texts.append(worker.get("/connectors/safe-t/tasks"))
        texts.append(worker.get("/metrics"))
        texts.append(WorkerClient(f"http://127.0.0.1:{own['http.port']}").get("/metrics"))
        exported = set(re.findall(r"^(helenus_\w+)", "\n".join(texts[-2:]), re.MULTILINE))
        metrics_asked = {name for text in expressions() for name in re.findall(r"helenus_\w+", text)}
        # What has a label for a kind or a reason is there once there is one; the others are from the start.
        assert metrics_asked - exported <= set(LATER)
        assert json.loads(texts[1])["safe-t"]["status"]["tasks"][0]["state"] == "RUNNING"
        assert "worker.leads" in logs[1].read_text()
        assert not re.search("writers.not_fenced|journal.not_deleted", logs[1].read_text())
        top = [script("helenus-connector"), "top", "--once", "--url", listener, "--cafile", str(authority[1])]
        login = {**os.environ, "LOGIN": f"ops:{REST_PASSWORD}", "COLUMNS": "160"}
        shown = subprocess.run([*top, "--user", "${env:LOGIN}"], capture_output=True, text=True, env=login, timeout=60)
        assert "safe.t" in shown.stdout, shown.stderr
        assert "RUNNING" in shown.stdout
        refused = subprocess.run(top, capture_output=True, text=True, timeout=60)
        assert (refused.returncode, "401" in refused.stderr) == (1, True)
        texts += [shown.stdout, refused.stderr]
        nobody_gets_into(started[1].pid, int(listener.rpartition(":")[2]))
        nobody_reads_files_of(Path(worker_file).parent, tmp_path / "state")
    finally:
        for process in started:
            process.terminate()
        codes = [process.wait(60) for process in started]
    texts += [log.read_text() for log in logs]
    assert codes == [0, 0], texts[-1]
    for secret in secrets_of(status):
        assert [text[max(0, text.index(secret) - 200) :][:400] for text in texts if secret in text] == []


def test_validate_names_the_rights_that_a_login_lacks(
    status: Status, session: Any, files: Callable[[str, Mapping[str, str | None]], list[str]]
) -> None:
    assert status.security
    stranger = f"${{file:{status.security.passwords}:{STRANGER}}}"
    for name, changes, expected in (
        ("right", {}, (0, [])),
        (
            "stranger",
            {"kafka.sasl.username": STRANGER, "kafka.sasl.password": stranger, "errors.tolerance": "all"},
            (1, ["READ events-safe.t", "WRITE events-safe.t", "WRITE data-safe.t", "WRITE dlq-safe.t"]),
        ),
    ):
        command = [script("helenus-connector"), "validate", *files(name, changes), "--connect"]
        process = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=300)
        lines = re.findall(r"lacks the right to (\w+) \(.*, topic ([\w.-]+)\): grant it", process.stderr)
        assert (process.returncode, [" ".join(line) for line in lines]) == expected, (process.stdout, process.stderr)
        assert process.stdout.count("the servers refuse nothing; not asked: ") == (process.returncode == 0)


def nobody_gets_into(worker: int, rest_port: int) -> None:
    """What takes connections in a worker's processes: the REST port, three ports of Java, and sockets of its own."""
    listeners = attacks.listeners(worker)
    programs = {listener.port: Path(listener.command).name for listener in listeners if listener.port}
    names = sorted(name.rstrip("0123456789.") for name in programs.values())
    assert names == ["java"] * 3 + ["python"], listeners
    assert programs[rest_port] != "java", "the REST API, which asks for a login"
    addresses = {listener.address for listener in listeners if listener.port not in (0, rest_port)}
    assert attacks.call_java(addresses) == []
    tries = attacks.fetch_blocks(addresses)
    assert [line for line in tries if " taken " in line or "BlockNotFound" in line] == []
    # Spark's two were reached, and ask for what a stranger does not have. The third speaks another language.
    assert len({line.split()[0] for line in tries if "Expected SaslMessage" in line}) == 2, tries
    paths = [listener.path for listener in listeners if listener.path]
    assert paths, "Python's workers, and what they tell the driver"
    runs = {Path(path).parent for path in paths}
    assert [run.name.startswith("helenus-run-") for run in runs] == [True], runs
    assert attacks.reach_sockets(paths) == []
    assert attacks.open_to_others(*runs) == []


def nobody_reads_files_of(folder: Path, state: Path) -> None:
    """Of the worker and the agent, which were started as a shell does, with the umask 022."""
    checkpoint, scratch = folder / "checkpoint", folder / "scratch"
    assert {"worker.lock", "schemas.registered"} <= {path.name for path in checkpoint.iterdir()}
    assert list(checkpoint.glob("*/offsets/0")), "Spark's own files are there"
    assert list(scratch.rglob("*")), "Spark's scratch directories are there"
    assert attacks.open_to_others(checkpoint, scratch, state) == []


RECIPES = Path(__file__).parents[2] / "sinks" / "recipes"
RECIPE_MISTAKES: list[tuple[dict[str, str | None], list[str]]] = [
    ({"sasl.password": WRONG}, ["uthentication failed", "sasl.password"]),
    ({"ssl.ca.location": "{other}"}, ["certificate verify failed", "ssl.ca.location"]),
    ({"security.protocol": None}, ["security.protocol"]),
    ({"schema.registry.basic.auth.user.info": None}, ["the registry", "401", "basic.auth.user.info"]),
    ({"schema.registry.ssl.ca.location": "{other}"}, ["the registry", "certificate verify failed"]),
    ({"sasl.password": "${env:NOWHERE}"}, ["NOWHERE", "not set"]),
]
"""What is wrong in a recipe's --config, and words of its one line."""


def test_recipes_log_in_and_say_what_is_wrong(
    status: Status, registry: str, authority: tuple[trustme.CA, Path], tmp_path: Path
) -> None:
    """After the test before, which fills the topic."""
    assert status.security
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    secrets = tmp_path / "secrets.properties"
    secrets.write_text(f"registry=helenus:{REGISTRY_PASSWORD}\n")
    own = {
        **status.security.kafka("admin"),
        "sasl.password": "${env:KAFKA_PASSWORD}",
        "schema.registry.basic.auth.user.info": f"${{file:{secrets}:registry}}",
        "schema.registry.ssl.ca.location": str(authority[1]),
    }
    environment = {**os.environ, "KAFKA_PASSWORD": status.security.password("admin")}

    def start(number: int, changes: Mapping[str, str | None]) -> subprocess.Popen[str]:
        changed = {key: value and value.replace("{other}", str(other)) for key, value in {**own, **changes}.items()}
        config = write_properties(
            tmp_path / f"{number}.properties", {k: v for k, v in changed.items() if v is not None}
        )
        words = [status.bootstrap_servers, registry, "data-safe.t", str(tmp_path / f"{number}.db"), "t"]
        command = [sys.executable, str(RECIPES / "to_duckdb.py"), *words, "--once", "--config", str(config)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    started = [start(number, changes) for number, changes in enumerate([{}, *(c for c, _ in RECIPE_MISTAKES)])]
    answers = [(*process.communicate(timeout=PATIENCE_S), process.returncode) for process in started]
    assert answers[0][2] == 0, answers[0]
    show = "import duckdb, sys; print(duckdb.connect(sys.argv[1]).sql('SELECT count(*), count(v) FROM t').fetchall())"
    command = [sys.executable, "-c", show, str(tmp_path / "0.db")]
    assert subprocess.run(command, capture_output=True, text=True).stdout == f"[({ROWS - 1}, {ROWS - 1})]\n"
    for (_, words), (_, errors, code) in zip(RECIPE_MISTAKES, answers[1:], strict=True):
        assert code == 1, errors
        (line,) = errors.splitlines()
        assert line.startswith("to_duckdb.py: ")
        assert [word for word in words if word not in line] == [], line
    for secret in secrets_of(status):
        assert [text for answer in answers for text in answer[:2] if secret in text] == []


MISTAKES: list[tuple[dict[str, str | None], int, list[str]]] = [
    ({"cassandra.password": WRONG}, 1, ["refused the login", "cassandra.password", "[cassandra-auth]"]),
    ({"cassandra.username": None}, 1, ["refused the login", "cassandra.username", "[cassandra-auth]"]),
    ({"cassandra.ssl.cafile": "{other}"}, 1, ["certificate verify failed", "cassandra.ssl", "[cassandra-auth]"]),
    ({"cassandra.ssl.cafile": "/no/such.pem"}, 2, ["/no/such.pem", "[config]"]),
    ({"cassandra.ssl.enabled": "false"}, 1, ["cassandra.ssl.enabled=true", "[cassandra-unreachable]"]),
    ({"kafka.sasl.password": WRONG}, 1, ["invalid credentials", "sasl.*", "[broker-refused]"]),
    ({"kafka.ssl.ca.location": "{other}"}, 1, ["certificate verify failed", "[broker-refused]"]),
    ({"kafka.ssl.ca.location": "/no/such.pem"}, 2, ["ssl.ca.location", "[config]"]),
    ({"kafka.security.protocol": "TLS"}, 2, ["security.protocol", "[config]"]),
    (
        {"value.converter.schema.registry.basic.auth.user.info": f"helenus:{WRONG}"},
        1,
        ["refused the login: 401", "basic.auth.user.info", "[registry-auth]"],
    ),
    (
        {"value.converter.schema.registry.basic.auth.user.info": None},
        1,
        ["refused the login: 401", "basic.auth.user.info", "[registry-auth]"],
    ),
    (
        {"value.converter.schema.registry.ssl.cafile": "{other}"},
        1,
        ["certificate verify failed", "schema.registry.ssl", "[registry-auth]"],
    ),
    ({"value.converter.schema.registry.ssl.cafile": "/no/such.pem"}, 2, ["/no/such.pem", "[config]"]),
    ({"listeners.https.ssl.certfile": None}, 2, ["listeners.https.ssl.certfile: set it", "[config]"]),
    ({"rest.basic.auth.user.info": WRONG}, 2, ["rest.basic.auth.user.info=*****", "user:password", "[config]"]),
    ({"table": "other"}, 1, ["no SELECT permission", "safe.other", "[cassandra-auth]"]),
]


@pytest.mark.long  # each is a process; agent/test_secure.py has them, too
@pytest.mark.parametrize("code", [1, pytest.param(2, marks=pytest.mark.long)])  # no server sees the others
def test_every_mistake_is_one_clear_message(
    status: Status, session: Any, files: Callable[[str, Mapping[str, str | None]], list[str]], tmp_path: Path, code: int
) -> None:
    """All of them, some at a time: what most do is wait. None of them starts Spark."""
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    environment_ = environment()

    def wrong(number: int) -> str | None:
        changes, _, words = MISTAKES[number]
        properties = {key: value and value.replace("{other}", str(other)) for key, value in changes.items()}
        command = [sys.executable, "-c", "from helenus_connector.cli import main; main()"]
        arguments = files(str(number), properties)
        began = time.monotonic()
        try:
            process = subprocess.run(
                [*command, *arguments], capture_output=True, text=True, timeout=300, env=environment_
            )
        except subprocess.TimeoutExpired as error:
            return f"{changes}: still runs: {(error.stderr or b'')[-1000:]!r}"
        *_, last = process.stderr.splitlines() or [""]
        output = process.stderr + process.stdout
        faults = [f"does not say {word}" for word in words if word not in last]
        faults += ["shows a secret"] * any(secret in output for secret in secrets_of(status))
        faults += ["has a traceback"] * ("Traceback" in output)
        faults += ["has no one message"] * (output.count("helenus-connector: ") != 1)
        faults += [f"ends with {process.returncode}"] * (process.returncode != code)
        return (
            f"{changes} {', '.join(faults)} ({time.monotonic() - began:.0f} s):\n{output[-1500:]}" if faults else None
        )

    chosen = [number for number, mistake in enumerate(MISTAKES) if mistake[1] == code]
    with ThreadPoolExecutor(3) as pool:
        faults_found = "\n\n".join(filter(None, pool.map(wrong, chosen)))
    assert not faults_found, faults_found
