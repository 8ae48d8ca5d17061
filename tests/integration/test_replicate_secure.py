"""`helenus-connector replicate` with TLS and passwords on every connection: it works, and shows no secret."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from integration.pipeline import script, write_properties
from patience import PATIENCE_S

from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import read_tables
from helenus_schemas.event.change import Origin, Scope
from helenus_schemas.event.wire import request
from helenus_schemas.service.cassandra import connect
from helenus_schemas.settings.shared import CassandraSettings
from helenus_sinks.kafka.log import KafkaLog
from helenus_stack.secure import KAFKA_ADMIN
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

WRONG = "n0t-the-passw0rd"


@pytest.fixture(scope="module")
def status(secure: Stack) -> Status:
    return secure.status()


@pytest.fixture(scope="module")
def session(status: Status) -> Iterator[Any]:
    session = connect(CassandraSettings.from_properties(status.cassandra(), "status"))
    for keyspace in ("locked", "copy"):
        session.execute(
            f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
        session.execute(f"CREATE TABLE {keyspace}.t (k int PRIMARY KEY, v text)")
    session.execute("INSERT INTO locked.t (k, v) VALUES (5, 'five')")
    table = next(iter(read_tables(session, "locked", "t").values()))
    with closing(KafkaLog(status.kafka())) as log:
        log.create("events-locked.t", 1, {})
        key = KeyCodec(table).encode((bytes([0, 0, 0, 5]),))
        log.append("events-locked.t", 0, key, request(Scope.ROW, Origin.SNAPSHOT))
        log.flush(30)
    yield session
    session.cluster.shutdown()


def replicate(status: Status, folder: Path, command: str, changes: Mapping[str, str], *options: str) -> tuple[int, str]:
    properties = {
        "keyspace": "locked",
        "table": "t",
        "target.keyspace": "copy",
        **status.cassandra(),
        **{f"target.{key}": value for key, value in status.cassandra().items()},
        **{key if key == "bootstrap.servers" else f"kafka.{key}": value for key, value in status.kafka().items()},
        **changes,
    }
    file = write_properties(folder / "replicate.properties", properties)
    words = [script("helenus-connector"), command, str(file), *options]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    text = ended.stdout + ended.stderr
    assert status.security
    for secret in (status.security.password(KAFKA_ADMIN), WRONG):  # that of Cassandra's user is its name
        assert secret not in text
    assert "Traceback" not in text
    return ended.returncode, text


def test_rows_are_copied_and_compared(status: Status, session: Any, tmp_path: Path) -> None:
    assert replicate(status, tmp_path, "compare", {}, "--patience", "0")[0] == 3
    code, text = replicate(status, tmp_path, "replicate", {}, "--once")
    assert code == 0, text
    assert [tuple(row) for row in session.execute("SELECT k, v FROM copy.t")] == [(5, "five")]
    code, text = replicate(status, tmp_path, "compare", {})
    assert (code, "t: 1 row, 0 differences" in text) == (0, True), text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target.cassandra.password": WRONG}, r"check target.cassandra.username, target.cassandra.password"),
        ({"cassandra.password": WRONG}, "check cassandra.username, cassandra.password"),
        ({"target.cassandra.ssl.enabled": "false", "target.cassandra.ssl.cafile": ""}, "target"),
        ({"kafka.sasl.password": WRONG}, "[broker-re"),
    ],
)
def test_a_refused_login_is_one_line(
    status: Status, session: Any, tmp_path: Path, changes: Mapping[str, str], message: str
) -> None:
    code, text = replicate(status, tmp_path, "replicate", changes, "--once")
    assert code in (1, 2)
    assert message in text.splitlines()[-1]
