"""The whole path on Pulsar with TLS, tokens and the least rights; it shows no token, and explains every mistake."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trustme
from bench import processes
from integration.pipeline import free_port, script, write_properties
from integration.test_secure_connector import environment
from patience import eventually
from spark_start import java_options

from helenus_schemas.service.cassandra import connect
from helenus_schemas.settings.shared import CassandraSettings
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.log import PulsarLog
from helenus_stack.pulsar_reader import PulsarReader
from helenus_stack.secure import AGENT, CONNECTOR, PULSAR_ADMIN, STRANGER
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = [
    pytest.mark.long,
    pytest.mark.integration,
    # The driver's event loop is ended by its own thread, which leaves warnings of no interest.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROWS = 20
Files = Callable[[str, Mapping[str, str | None]], list[str]]


@pytest.fixture(scope="module")
def status(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Status]:
    directory = tmp_path_factory.mktemp("secure")
    with Stack(directory, only=["cassandra", "pulsar"], log="pulsar", secure=True) as stack:
        yield stack.status()


@pytest.fixture(scope="module")
def session(status: Status) -> Iterator[Any]:
    session = connect(CassandraSettings.from_properties(status.cassandra(), "status"))
    session.execute("CREATE KEYSPACE safe WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    for table in ("t", "other"):
        session.execute(f"CREATE TABLE safe.{table} (a int PRIMARY KEY, v text) WITH cdc = true")
    yield session
    session.cluster.shutdown()


@pytest.fixture(scope="module")
def topics(status: Status) -> None:
    """Made by the administrator: neither program may."""
    assert status.security
    assert status.pulsar_url
    token, cafile = status.security.token(PULSAR_ADMIN), Path(status.security.cafile)
    log = PulsarLog(PulsarConfig(status.pulsar_url, status.pulsar_admin_url, token=token, cafile=cafile))
    for topic in ("events-safe.t", "data-safe.t", "events-safe.other"):
        log.create(topic, 2, {})
    log.close()


@pytest.fixture
def files(status: Status, topics: None, tmp_path: Path) -> Files:
    """Makes a worker's and a connector's file in a folder; with changes, where None removes."""
    security = status.security
    assert security

    def make(name: str, changes: Mapping[str, str | None]) -> list[str]:
        folder = tmp_path / name
        folder.mkdir()
        worker: dict[str, object] = {
            "log": "pulsar",
            "pulsar.service.url": status.pulsar_url,
            "pulsar.auth.token": f"${{file:{security.tokens}:{CONNECTOR}}}",
            "pulsar.tls.cafile": security.cafile,
            "checkpoint.dir": folder / "checkpoint",
            "listeners": f"http://127.0.0.1:{free_port()}",
            "spark.master": "local[1,4]",
            "spark.driver.extraJavaOptions": java_options(),
            "log.level": "debug",
        }
        table: dict[str, object] = {
            "name": "safe-t",
            "keyspace": "safe",
            "table": "t",
            "cassandra.local.dc": status.local_dc,
            **status.cassandra(CONNECTOR),
        }
        for key, value in changes.items():
            (worker if key.partition(".")[0] == "pulsar" else table)[key] = value
        return [
            str(write_properties(folder / f"{name}.properties", {k: v for k, v in keys.items() if v is not None}))
            for name, keys in (("worker", worker), ("table", table))
        ]

    return make


def tokens(status: Status) -> list[str]:
    assert status.security
    return [status.security.token(user) for user in (AGENT, CONNECTOR, STRANGER, PULSAR_ADMIN)]


def test_the_whole_path_and_no_token_is_seen(status: Status, session: Any, files: Files, tmp_path: Path) -> None:
    """The agent may produce, the connector consume and produce."""
    assert status.security
    own = {
        "cassandra.config": status.nodes[0].cassandra_yaml,
        "cassandra.local.dc": status.local_dc,
        **status.cassandra(AGENT),
        "log": "pulsar",
        "pulsar.service.url": status.pulsar_url,
        "pulsar.auth.token": f"${{file:{status.security.tokens}:{AGENT}}}",
        "pulsar.tls.cafile": status.security.cafile,
        "state.dir": tmp_path / "state",
        "http.port": free_port(),
        "log.level": "debug",
    }
    agent = write_properties(tmp_path / "agent.properties", own)
    for number in range(ROWS):
        session.execute("INSERT INTO safe.t (a, v) VALUES (%s, %s)", (number, f"v{number}"))
    session.execute("DELETE FROM safe.t WHERE a = 0")
    wanted = {0: None, **{number: f"v{number}" for number in range(1, ROWS)}}
    logs = [tmp_path / "agent.log", tmp_path / "connector.log"]
    commands = [[script("helenus-agent"), str(agent)], [script("helenus-connector"), *files("whole", {})]]
    reader = PulsarReader(status)

    def values() -> dict[int, str | None]:
        records = map(reader.record, reader.messages("data-safe.t"))
        return {record.key["a"]: record.value and record.value["v"] for record in records}

    started = [
        subprocess.Popen(command, stderr=log.open("wb"), env=environment())
        for command, log in zip(commands, logs, strict=True)
    ]
    try:
        try:
            eventually(lambda: values() == wanted, "the topic shows the rows")
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *(log.read_text()[-3000:] for log in logs)])) from None
        seen = b"".join(
            processes.contents(p, "cmdline", "environ") for process in started for p in processes.family(process.pid)
        )
        assert b"java" in seen
    finally:
        reader.close()
        for process in started:
            process.terminate()
        codes = [process.wait(60) for process in started]
    texts = [seen.decode(errors="replace"), *(log.read_text() for log in logs)]
    assert codes == [0, 0], texts[-1]
    for token in tokens(status):
        assert not [text for text in texts if token in text]


BOSS: dict[str, str | None] = {"pulsar.auth.token": "{boss}"}
MISTAKES: list[tuple[dict[str, str | None], int, list[str]]] = [
    ({"pulsar.auth.token": "{agent}AAAA"}, 1, ["Failed to authenticate", "pulsar.auth.token", "[broker-refused]"]),
    ({"pulsar.auth.token": None}, 1, ["uthenticat", "pulsar.auth.token", "[broker-refused]"]),
    ({"pulsar.auth.token": "{stranger}"}, 1, ["ot authorized", "role", "[broker-refused]"]),
    ({"pulsar.tls.cafile": "{other}"}, 1, ["certificate verify failed", "pulsar.tls.cafile", "[broker-refused]"]),
    ({"pulsar.tls.cafile": "/no/such.pem"}, 2, ["/no/such.pem", "[config]"]),
    (
        {"pulsar.service.url": "pulsar+ssl://127.0.0.1:9"},
        1,
        ["127.0.0.1:9", "pulsar.service.url", "[broker-unreachable]"],
    ),
    ({"pulsar.service.url": "{plain}"}, 1, ["pulsar.service.url", "[broker-unreachable]"]),
    ({"pulsar.namespace": "nothing"}, 1, ["not authorized", "public/nothing", "[broker-refused]"]),
    ({"pulsar.namespace": "nothing", **BOSS}, 1, ["Namespace not found", "public/nothing", "[broker-refused]"]),
    # Those start Spark before they come to it.
    ({"pulsar.auth.token": "{agent}"}, 1, ["ot authorized", "events-safe.t", "[broker-refused]"]),
    ({"table": "other"}, 1, ["pulsar.admin.url", "data-safe.other", "[broker-refused]"]),
]


@pytest.mark.long
def test_every_mistake_is_one_clear_message(status: Status, session: Any, files: Files, tmp_path: Path) -> None:
    """All of them, some at a time: what most do is wait."""
    assert status.security
    assert status.pulsar_url
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    values = {
        "other": str(other),
        "agent": status.security.token(AGENT),
        "stranger": status.security.token(STRANGER),
        "plain": status.pulsar_url.replace("+ssl", ""),
        "boss": status.security.token(PULSAR_ADMIN),
    }

    def wrong(number: int) -> str | None:
        changes, code, words = MISTAKES[number]
        properties = {key: value and value.format(**values) for key, value in changes.items()}
        command = [script("helenus-connector"), *files(str(number), properties)]
        began = time.monotonic()
        try:
            process = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment())
        except subprocess.TimeoutExpired as error:
            return f"{changes}: still runs: {(error.stderr or b'')[-1000:]!r}"
        *_, last = process.stderr.splitlines() or [""]
        output = process.stderr + process.stdout
        faults = [f"does not say {word}" for word in words if word not in last]
        faults += ["shows a token"] * any(token in output for token in tokens(status))
        faults += ["has a traceback"] * ("Traceback" in output)
        faults += ["has no one message"] * (output.count("helenus-connector: ") != 1)
        faults += [f"ends with {process.returncode}"] * (process.returncode != code)
        return (
            f"{changes} {', '.join(faults)} ({time.monotonic() - began:.0f} s):\n{output[-1500:]}" if faults else None
        )

    with ThreadPoolExecutor(3) as pool:
        faults_found = "\n\n".join(filter(None, pool.map(wrong, range(len(MISTAKES)))))
    assert not faults_found, faults_found
