"""The login of a Schema Registry: it reaches the registry, and nothing that anybody reads."""

from __future__ import annotations

import base64
import errno
import gzip
import json
import logging
import tracemalloc
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from shutil import rmtree
from threading import Event, Thread
from types import SimpleNamespace

import pytest
from hostile_clients import redirecting

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.control.tables import TableDefinitions
from helenus_connector.shape.encoding.registry import Registry
from helenus_schemas.avro import build as avro
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import HelenusError, Kind

URL = "value.converter.schema.registry.url"
USER_INFO = "value.converter.schema.registry.basic.auth.user.info"


def registry_of(memory: Path, url: str, **more: str) -> Registry:
    return Registry(settings_of(url, **more), memory)


def settings_of(url: str, **more: str) -> ConnectorSettings:
    properties = {"name": "n", "keyspace": "ks", "table": "t", URL: url, **more}
    return ConnectorSettings.from_properties(properties, "test")


class Answer(BaseHTTPRequestHandler):
    logins: list[str | None]
    id = 7
    away = False

    def do_GET(self) -> None:
        if self.path.endswith("/latest"):
            self.send_error(404)
            return
        self.logins.append(self.headers["Authorization"])
        self._answer(b'{"compatibilityLevel": "FULL"}' if "/config/" in self.path else b'["a"]')

    def do_POST(self) -> None:
        self._answer(b'{"id": %d}' % self.id)

    do_PUT = do_POST  # noqa: N815

    def _answer(self, body: bytes, status: int = 200) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.send_response(503 if self.away else status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def server() -> Iterator[int]:
    Answer.logins, Answer.id, Answer.away = [], 7, False
    with HTTPServer(("127.0.0.1", 0), Answer) as listening:
        thread = Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield listening.server_port
        listening.shutdown()
        thread.join()
    Answer.away = False


def test_a_login_in_the_address_reaches_the_registry_and_no_file_or_log(
    server: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = tmp_path / "schemas"
    registry = registry_of(memory, f"http://me:s3%2Fcret@127.0.0.1:{server}")
    with caplog.at_level(logging.DEBUG):
        registry.check()
        assert registry.register("a-value", '"string"') == 7
        registry.close()
    assert set(Answer.logins) == {"Basic " + base64.b64encode(b"me:s3/cret").decode()}
    assert "127.0.0.1" in caplog.text, "the client's library logs where it asks"
    ids = (memory / "a-value.json").read_text()
    assert "a-value" in ids
    for text in (caplog.text, ids):
        assert "cret" not in text


def test_each_registry_gets_its_own_login_alone(server: int, tmp_path: Path) -> None:
    """Of several in one address; and none follows a redirect."""
    first_login, other = (
        "Basic " + base64.b64encode(b"me:one").decode(),
        "Basic " + base64.b64encode(b"me:other").decode(),
    )
    for url, logins in (
        (f"http://me:one@127.0.0.1:1,http://127.0.0.1:{server}", {None}),
        (f"http://me:one@127.0.0.1:1,http://me:other@127.0.0.1:{server}/", {other}),
        (f"http://me:one@LOCALHOST:{server},http://127.0.0.1:{server}", {first_login}),
        (f"http://me:one@127.0.0.1:{server}/apart,http://127.0.0.1:{server}", {first_login}),
    ):
        Answer.logins = []
        registry = registry_of(tmp_path / "ids", url)
        registry.check()
        registry.close()
        assert set(Answer.logins) == logins, url
    for more in ({}, {USER_INFO: "me:one"}):
        Answer.logins = []
        login = "" if more else "me:one@"
        with redirecting(f"http://127.0.0.1:{server}") as port:
            registry = registry_of(tmp_path / "ids", f"http://{login}127.0.0.1:{port}", **more)
            with pytest.raises(HelenusError):
                registry.check()
            registry.close()
        assert Answer.logins == []


def test_a_context_is_a_part_of_the_address(server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Confluent's registry: all of a registry's requests go there, and the ids of two contexts are apart."""
    paths: list[str] = []
    monkeypatch.setattr(Answer, "log_message", lambda self, *_: paths.append(self.path))  # once for each answer
    url = f"http://127.0.0.1:{server}"
    for address, number in ((f"{url}/contexts/.team.", 7), (url, 8)):
        Answer.id = number
        registry = registry_of(tmp_path / "ids", address)
        assert registry.register("a-value", '"string"') == number
        registry.close()
    in_context = [path for path in paths if path.startswith("/contexts/.team./")]
    assert "/contexts/.team./subjects/a-value/versions" in {path.partition("?")[0] for path in in_context}
    assert [path.removeprefix("/contexts/.team.") for path in in_context] == paths[len(in_context) :]


def test_an_error_shows_the_address_without_its_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "s3cret")
    for url in ("http://me:${env:PW}@127.0.0.1:1", "https://127.0.0.1:2,https://me:${env:PW}@127.0.0.1:1"):
        registry = registry_of(tmp_path / "ids", url)
        for ask in (registry.check, lambda own_registry=registry: own_registry.register("a-value", '"string"')):
            with pytest.raises(HelenusError) as failed:
                ask()
            assert failed.value.kind is Kind.REGISTRY_UNREACHABLE
            assert "://127.0.0.1:1" in failed.value.where
            assert "s3cret" not in str(failed.value)
        registry.close()


@pytest.mark.parametrize(
    "url",
    [
        *("http://me:s3/cret@h:1", "http://me:7/s3cret@h:1", "http://me:s3?cret@h:1", "http://me:s3#cret@h:1"),
        *("http://me:s3,cret@h:1", "me:s3cret@h:1", "http://me:s3cret@h:port", "http://me:s3cret@[h:1", "ftp://s3@h:1"),
    ],
)
def test_an_invalid_address_shows_no_part_of_a_login(url: str, tmp_path: Path) -> None:
    with pytest.raises(HelenusError) as failed:
        registry_of(tmp_path / "ids", url)
    assert failed.value.kind is Kind.CONFIG
    assert URL in str(failed.value)
    assert "s3" not in str(failed.value)


def test_two_logins_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HelenusError, match="leave one out") as failed:
        registry_of(tmp_path / "ids", "http://me:s3cret@h:1", **{USER_INFO: "me:s3cret"})
    assert "s3cret" not in str(failed.value)


def test_worker_knows_registered_schemas_while_the_registry_is_away(server: int, tmp_path: Path) -> None:
    """A registry that answers is asked all the same: it may have lost its schemas, and give others these ids."""
    url, schema_directory = f"http://127.0.0.1:{server}", tmp_path / "checkpoint" / "schemas"
    runs = 0
    executor = Registry(settings_of(url), tmp_path / "elsewhere", schema_directory)
    assert executor.register("c-value", '"string"') == 7
    assert not schema_directory.parent.exists(), "an executor's host has no checkpoint"
    schema_directory.parent.mkdir()

    def start(url_now: str = url) -> Registry:
        nonlocal runs
        runs += 1
        return Registry(settings_of(url_now), tmp_path / f"run {runs}", schema_directory)

    assert not start().knows("a-value")
    for register in (start().register("a-value", '"string"'), start().keep("a-key", '"long"', '"string"')):
        assert register == 7
    Answer.away = True
    away = start()
    assert away.register("a-value", '"string"') == away.keep("a-key", '"long"', '"string"') == 7
    assert (away.knows("a-value"), start("http://127.0.0.1:1").knows("a-value")) == (True, False)
    for subject, schema in (("a-value", '"int"'), ("b-value", '"string"')):
        with pytest.raises(HelenusError) as failed:
            away.register(subject, schema)
        assert failed.value.kind is Kind.REGISTRY_UNREACHABLE
    Answer.away, Answer.id = False, 8
    assert start().register("a-value", '"string"') == 8
    Answer.away = True
    assert start().register("a-value", '"string"') == 8


def test_a_registry_that_was_away_is_asked_again_later(
    server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(settings_of(f"http://127.0.0.1:{server}"), tmp_path / "run", tmp_path / "kept")
    registry.register("a-value", '"string"')
    rmtree(tmp_path / "run")
    Answer.away = True
    assert registry.register("a-value", '"string"') == 7
    Answer.away = False
    requests_before = len(Answer.logins)
    assert registry.register("a-value", '"string"') == 7
    assert len(Answer.logins) == requests_before, "it would take seconds each time"
    monkeypatch.setattr(registry, "_unavailable_until", 0.0)
    assert registry.register("a-value", '"string"') == 7
    assert len(Answer.logins) > requests_before


@pytest.mark.parametrize("format", ["key-value-avro", "key-value-json"])
def test_which_tables_a_registry_that_is_away_keeps_from_running(
    server: int, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(f"http://127.0.0.1:{server}", **{"output.format": format})
    row = SimpleNamespace(one=lambda: SimpleNamespace(schema_version="v"), all=list)
    cluster = SimpleNamespace(metadata=SimpleNamespace(all_hosts=list))
    session = SimpleNamespace(execute=lambda _: row, cluster=cluster)
    monkeypatch.setattr("helenus_connector.control.tables.connect", lambda _: session)
    table = Table("ks", "t", uuid.uuid1(), (Column("k", parse("int"), "partition_key", 0),), cdc=True)
    monkeypatch.setattr("helenus_connector.control.tables.read_tables", lambda *_: {table.full_name: table})
    Answer.away = True
    if format == "key-value-json":
        assert TableDefinitions(tmp_path / "kept").scan(settings, tmp_path) == {"t": None}
        return
    with pytest.raises(HelenusError) as failed:
        TableDefinitions(tmp_path / "kept").scan(settings, tmp_path)
    assert failed.value.kind is Kind.REGISTRY_UNREACHABLE
    Answer.away = False
    Registry(settings, tmp_path / "run", tmp_path / "kept").register("data-ks.t-value", '"string"')
    Answer.away = True
    assert TableDefinitions(tmp_path / "kept").scan(settings, tmp_path) == {"t": None}


def test_a_registry_is_asked_once_for_connectors_that_are_looked_at_in_a_row(
    server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that stops answering is noticed soon all the same; and another login may be refused."""
    settings = settings_of(f"http://127.0.0.1:{server}")
    row = SimpleNamespace(one=lambda: SimpleNamespace(schema_version="v"), all=list)
    monkeypatch.setattr("helenus_connector.control.tables.connect", lambda _: SimpleNamespace(execute=lambda _: row))
    monkeypatch.setattr("helenus_connector.control.tables.read_tables", lambda *_: {})
    tables, requests_before = TableDefinitions(), len(Answer.logins)
    for _ in range(3):
        tables.scan(settings, tmp_path)
    assert len(Answer.logins) == requests_before + 1
    Answer.away = True
    with pytest.raises(HelenusError):
        tables.scan(settings_of(f"http://user:secret@127.0.0.1:{server}"), tmp_path)
    monkeypatch.setattr("helenus_connector.control.tables._REGISTRY_CHECK_S", 0.0)
    with pytest.raises(HelenusError):
        tables.scan(settings, tmp_path)


class Latest(Answer):
    """A registry whose subjects all have the schema `known_schema`, and take any other."""

    known_schema = ""
    posted: list[str]

    def do_GET(self) -> None:
        latest = {"subject": "s", "version": 1, "id": 3, "schema": self.known_schema, "schemaType": "AVRO"}
        self._answer(
            json.dumps(latest).encode() if "/versions/latest" in self.path else b'{"compatibilityLevel": "NONE"}'
        )

    def do_POST(self) -> None:
        self.posted.append(self.path)
        self._answer(b'{"id": 7}')


@pytest.fixture
def latest() -> Iterator[int]:
    Latest.posted = []
    with HTTPServer(("127.0.0.1", 0), Latest) as listening:
        thread = Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield listening.server_port
        listening.shutdown()
        thread.join()


def _of_times(kind: str, field: str = "t") -> str:
    times = {"type": "array", "items": {"type": "long", "logicalType": kind}}
    return json.dumps({"type": "record", "name": "r", "fields": [{"name": field, "type": ["null", times]}]})


@pytest.mark.parametrize(("was", "now"), [("time-micros", "cql_time"), ("cql_time", "time-micros")])
def test_times_of_another_unit_are_refused(latest: int, tmp_path: Path, was: str, now: str) -> None:
    """As of DataStax's connector, or of this one before a setting was changed: both are longs to the registry."""
    Latest.known_schema = _of_times(was)
    registry = registry_of(tmp_path / "ids", f"http://127.0.0.1:{latest}")
    with pytest.raises(HelenusError, match=r"the topic has t as a time.*set time\.precision\.mode") as error:
        registry.register("data-value", _of_times(now))
    assert error.value.kind is Kind.REGISTRY_REFUSED
    with pytest.raises(HelenusError, match=r"key\.compat"):
        registry.keep("data-key", _of_times(now), _of_times(now))
    assert Latest.posted == []
    assert registry.register("data-value", _of_times(was)) == 7
    assert registry.register("data-value", _of_times(now, "new")) == 7
    registry.close()


MODES = {"decimal": ("precise", "string", "double"), "varint": ("precise", "string", "long")}


@pytest.mark.parametrize("number", MODES)
@pytest.mark.parametrize("cql_type", ["{}", "map<text, frozen<list<{}>>>", "frozen<tuple<int, {}>>"])
def test_a_changed_mode_is_named(number: str, cql_type: str, tmp_path: Path) -> None:
    """A registry with the schema of one mode refuses that of another, as all do under BACKWARD."""
    table = Table(
        *("ks", "t", uuid.UUID(int=1)),
        (
            Column("p", parse("int"), "partition_key", 0),
            Column("first", parse(cql_type.format(number))),  # the same type again is a reference to it
            Column("v", parse(cql_type.format(number))),
            Column("w", parse("frozen<list<text>>")),
        ),
    )
    schemas = [
        avro.text(avro.value_schema(table.with_forms({number: m} if m != "precise" else {}))) for m in MODES[number]
    ]

    class Refusing(Answer):
        latest: str

        def do_GET(self) -> None:
            if self.path.endswith("/versions/latest"):
                answer = {"subject": "a-value", "version": 1, "id": 7, "schema": self.latest}
                self._answer(json.dumps(answer).encode())
            else:
                self._answer(b'{"compatibilityLevel": "BACKWARD"}')

        def do_POST(self) -> None:
            self._answer(b'{"error_code": 409, "message": "incompatible"}', 409)

    with HTTPServer(("127.0.0.1", 0), Refusing) as listening:
        Thread(target=listening.serve_forever, daemon=True).start()
        for Refusing.latest in schemas:
            registry = registry_of(tmp_path / "ids", f"http://127.0.0.1:{listening.server_port}")
            for schema in schemas:
                with pytest.raises(HelenusError) as refused:
                    registry.register("a-value", schema)
                named = [mode for mode in MODES if f"was {mode}.handling.mode changed?" in refused.value.what]
                assert named == ([number] if schema != Refusing.latest else [])
                assert (f"set {number}.handling.mode back" in refused.value.advice) == bool(named)
            registry.close()
        listening.shutdown()


class Hostile(BaseHTTPRequestHandler):
    """A registry of somebody's own, whose answers are as the first part of the path says."""

    def do_GET(self) -> None:
        kind = self.path.split("/")[1]
        self.send_response(200)
        if kind == "compressed":
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        try:
            for _ in range(1 << 10 if kind == "long" else 1):
                self.wfile.write(b" " * (1 << 20) if kind == "long" else ANSWERS[kind])
        except OSError:  # nobody reads on
            Hostile.hung_up.set()

    do_POST = do_PUT = do_GET  # noqa: N815
    hung_up = Event()

    def log_message(self, format: str, *args: object) -> None: ...


ANSWERS = {
    "compressed": gzip.compress(b"[]"),
    "deep": b"[" * 100_000,
    "number": b'{"id": ' + b"9" * 5000 + b"}",
    "large": b'{"id": 99999999999, "compatibilityLevel": "FULL"}',
    "negative": b'{"id": -1, "compatibilityLevel": "FULL"}',
    "text": b'{"id": "x", "compatibilityLevel": "FULL"}',
    "list": b"[]",
}


@pytest.fixture(scope="module")
def hostile() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as listening:
        thread = Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield listening.server_port
        listening.shutdown()
        thread.join()


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_that_is_none(hostile: int, tmp_path: Path, kind: str) -> None:
    registry = registry_of(tmp_path / "ids", f"http://127.0.0.1:{hostile}/{kind}")
    with pytest.raises(HelenusError) as raised:
        registry.register("data-value", '"string"')
    assert raised.value.kind is Kind.REGISTRY_UNREACHABLE
    assert len(str(raised.value)) < 1000
    registry.close()


def test_an_answer_that_does_not_end(hostile: int, tmp_path: Path) -> None:
    """It is not read further than any answer goes."""
    Hostile.hung_up.clear()
    registry = registry_of(tmp_path / "ids", f"http://127.0.0.1:{hostile}/long")
    tracemalloc.start()
    try:
        with pytest.raises(HelenusError, match="an answer of more than 16777216 bytes"):
            registry.check()
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert Hostile.hung_up.wait(30)
    registry.close()


def test_ids_of_a_subject_with_a_long_name_are_kept(server: int, tmp_path: Path) -> None:
    """A topic's name has up to 249 characters, a file's 255."""
    url = f"http://127.0.0.1:{server}"
    subjects = [f"{'t' * 249}-{kind}" for kind in ("key", "value")]
    registry = Registry(settings_of(url), tmp_path / "run", tmp_path / "kept")
    for subject in subjects:
        assert registry.register(subject, '"string"') == 7
    Answer.away = True
    restarted_registry = Registry(settings_of(url), tmp_path / "run", tmp_path / "kept")
    assert [restarted_registry.register(subject, '"string"') for subject in subjects] == [7, 7]
    assert all(restarted_registry.knows(subject) for subject in subjects)


def test_a_full_disk_gets_no_file_with_each_try(server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    registry = Registry(settings_of(f"http://127.0.0.1:{server}"), tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(json, "dump", fail)
        with pytest.raises(OSError, match="No space"):
            registry.register("a-key", '"string"')
    assert list((tmp_path / "run").iterdir()) == []


def test_refused_schema_makes_a_registry_forget_all_ids(server: int, tmp_path: Path) -> None:
    """The advice is to delete the key's subject with the value's."""
    settings = settings_of(f"http://127.0.0.1:{server}")
    assert Registry(settings, tmp_path / "run").register("a-key", '"string"') == 7
    Answer.id = 8
    assert Registry(settings, tmp_path / "run").register("a-key", '"string"') == 7
    Registry(settings, tmp_path / "run")._refusal("incompatible", "the subject a-value")
    assert Registry(settings, tmp_path / "run").register("a-key", '"string"') == 8
