"""Schemas that wait for the registry, and stores without one: names of keys stay, and no topic is trusted."""

from __future__ import annotations

import itertools
import json
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryError
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from helenus_connector.config.connector import ConnectorSettings, PulsarConnectorSettings
from helenus_connector.config.model import Model
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.pipeline import _table_version
from helenus_connector.schema_registration import _schema_topic, registrar
from helenus_connector.schema_registration._deferred import DeferredSchemas, is_key
from helenus_connector.schema_registration._entry import SchemaEntry, State, parse_entry
from helenus_connector.schema_registration._outage import RegistryOutage
from helenus_connector.schema_registration._schema_topic import SchemaTopic
from helenus_connector.schema_registration._store_schemas import StoreSchemas
from helenus_connector.schema_registration._topic_store import TopicSchemaStore
from helenus_connector.schema_registration.choice import record_schemas
from helenus_connector.schema_registration.registrar import SchemaRegistrar, is_own, subject_prefixes
from helenus_connector.schema_store.contract import AvroSchemaStore, SchemaId
from helenus_connector.schema_store.store_class import find_store_class
from helenus_connector.shape.encoding.frames import frame, split_frame
from helenus_connector.shape.encoding.registry import Registry
from helenus_connector.testing.registry import RegistryClient
from helenus_schemas.avro.canonical import guid
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.properties import ConfigError
from helenus_stack.records import _schema_with_guid

URL = {"value.converter.schema.registry.url": "http://127.0.0.1:1"}
DEFER = {"key.schema.registration": "defer", "value.schema.registration": "defer"}
Record = tuple[bytes, bytes | None]


def schema_of(*fields: str, name: str = "t", kind: str = "int") -> str:
    columns = [{"name": field, "type": ["null", kind], "default": None} for field in fields]
    return json.dumps({"type": "record", "name": name, "namespace": "ks", "fields": columns}, separators=(",", ":"))


KEY = schema_of("k")[:-1] + f',"cql_id":"{uuid.UUID(int=1)}"}}'
OTHER_KEY = schema_of("k", kind="string")[:-1] + f',"cql_id":"{uuid.UUID(int=2)}"}}'
RENAMED_KEY = KEY.replace('"k"', '"renamed"')
V1, V2, V3 = schema_of("a"), schema_of("a", "b"), schema_of("a", "b", "c")


class MemoryTopic(SchemaTopic):
    """The topic of several processes: `records` are shared. `with_data` are topics that have records."""

    def __init__(self, records: list[Record], with_data: set[str] | None = None) -> None:
        super().__init__(SimpleNamespace(bootstrap_servers="b:1"), "helenus-schemas")  # type: ignore[arg-type]
        self.records = records
        self.with_data = with_data or set()
        self.before_write: Callable[[], None] | None = None

    def _read(self) -> None:
        for offset in range(self._next_offset, len(self.records)):
            self._take(*self.records[offset], offset)

    def _write(self, entry: SchemaEntry) -> None:
        if self.before_write is not None:
            hook, self.before_write = self.before_write, None
            hook()
        self.records.append(entry.to_record())

    def has_records(self, topic: str) -> bool:
        return topic in self.with_data


class AwayClient(RegistryClient):
    """A registry that may be away, or refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.refused: set[str] = set()
        self.requests = 0

    def _answer(self) -> None:
        self.requests += 1
        if self.is_away:
            raise OSError("no route to s3cret-free host")

    def __getattribute__(self, name: str) -> Any:
        if name.startswith(("get_", "lookup_", "register_", "set_")):
            self._answer()
        return super().__getattribute__(name)

    def register_schema(self, subject: str, schema: Any, normalize_schemas: bool = False) -> int:
        if schema.schema_str in self.refused:
            raise SchemaRegistryError(409, 40901, "not compatible")
        texts_known = [text for texts in self.versions.values() for text in texts]
        if schema.schema_str not in self.versions[subject]:
            self.versions[subject].append(schema.schema_str)
        return 100 + (texts_known.index(schema.schema_str) if schema.schema_str in texts_known else len(texts_known))

    def get_schema(self, schema_id: int) -> Any:
        texts_known = [text for texts in self.versions.values() for text in texts]
        return self._schema(texts_known[schema_id - 100])

    def get_version(self, subject: str, version: int, deleted: bool = False) -> Any:
        registered = super().get_version(subject, version, deleted)
        texts_known = [text for texts in self.versions.values() for text in texts]
        registered.schema_id = 100 + texts_known.index(registered.schema.schema_str)
        return registered


class Process:
    """A process with a table's schemas. Those of one test share the registry and the topic."""

    def __init__(self, client: AwayClient, records: list[Record], directory: Path, with_data: set[str]) -> None:
        settings = ConnectorSettings.from_properties(
            {"name": "n", "keyspace": "ks", "table": "t", **URL, **DEFER}, "test"
        )
        directory.mkdir(exist_ok=True)
        self.registry = Registry(settings, directory / "ids.json", None)
        self.registry.__dict__["_client"] = client
        self.topic = MemoryTopic(records, with_data)
        self.outage = RegistryOutage(self._probe, 0.01)
        self.client = client
        self.schemas = DeferredSchemas(self.registry, self.topic, self.outage, lambda _: True, lambda _: "data-ks.t")

    def _probe(self) -> None:
        if self.client.is_away:
            raise HelenusError(Kind.REGISTRY_UNREACHABLE, "away")

    def key(self, schema: str = KEY, value: str = V1) -> SchemaId:
        return self.schemas.keep("data-ks.t-key", schema, value)

    def value(self, schema: str) -> SchemaId:
        return self.schemas.register("data-ks.t-value", schema)

    def await_registry(self) -> None:
        deadline = threading.Event()
        for _ in range(500):
            if self.schemas.is_registration_due:
                return
            deadline.wait(0.01)
        raise AssertionError("nobody noticed that the registry is back")


class World:
    def __init__(self, directory: Path) -> None:
        self.client, self.records, self.with_data = AwayClient(), [], set()  # type: tuple[AwayClient, list[Record], set[str]]
        self._directory = directory
        self._numbers = itertools.count()

    def process(self) -> Process:
        return Process(self.client, self.records, self._directory / str(next(self._numbers)), self.with_data)

    def entries(self) -> list[SchemaEntry]:
        return MemoryTopic(self.records).entries()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_an_altered_table_goes_on_and_is_registered_in_order(world: World) -> None:
    process = world.process()
    key, first = process.key(), process.value(V1)
    assert (key, first) == (100, 101)
    world.client.is_away = True
    assert process.key(value=V2) == key
    assert process.value(V2) == guid(V2)
    assert process.value(V3) == guid(V3)
    assert [e.state for e in world.entries() if e.subject.endswith("-value")] == ["deferred", "deferred"]
    assert world.process().value(V3) == guid(V3), "another process has the same name"
    requests = world.client.requests
    assert (process.key(value=V3), process.value(V2), process.value(V3)) == (key, guid(V2), guid(V3))
    assert world.client.requests == requests, "nobody waits for the registry meanwhile"
    world.client.is_away = False
    process.await_registry()
    assert process.key(value=V3) == key
    assert isinstance(process.value(V3), int)
    assert world.client.versions["data-ks.t-value"] == [V1, V2, V3]
    assert not process.schemas.is_registration_due


def test_a_new_table_keeps_the_name_of_its_keys(world: World) -> None:
    world.client.is_away = True
    process = world.process()
    assert process.key() == guid(KEY)
    world.with_data.add("data-ks.t")
    world.client.is_away = False
    process.await_registry()
    assert process.key() == guid(KEY)
    assert world.client.versions["data-ks.t-key"] == [KEY]
    for _ in range(2):
        assert world.process().key() == guid(KEY), "also in others, by then"
        world.client.is_away = not world.client.is_away


def test_keys_that_are_not_known_wait(world: World) -> None:
    """A topic that has records, and nothing says how these name their keys' schema: two names would be two keys."""
    world.client.is_away = True
    world.with_data.add("data-ks.t")
    with pytest.raises(HelenusError, match="by which id the keys") as raised:
        world.process().key()
    assert raised.value.kind is Kind.REGISTRY_UNREACHABLE
    assert world.process().schemas.register("data-ks.t-truncation", V1) == guid(V1)
    with pytest.raises(HelenusError, match="by which id the keys"):
        world.process().schemas.register("data-ks.t-key-nullable", KEY)
    assert world.process().value(V1) == guid(V1), "values say by themselves which schema they have"


def test_a_process_elsewhere_knows_keys_from_the_topic(world: World) -> None:
    world.process().key()
    world.with_data.add("data-ks.t")
    world.client.is_away = True
    assert world.process().key(value=V2) == 100
    assert world.process().key(RENAMED_KEY, schema_of("b")) == 100, "a key that is renamed keeps its bytes"


def test_a_table_recreated_with_another_key_is_refused_at_once(world: World) -> None:
    world.process().key()
    world.client.is_away = True
    with pytest.raises(HelenusError) as raised:
        world.process().key(OTHER_KEY)
    assert raised.value.kind is Kind.REGISTRY_REFUSED


def test_a_refusal_stops_the_table_when_the_registry_is_back(world: World) -> None:
    process = world.process()
    process.value(V1)
    world.client.is_away = True
    process.value(V2)
    process.value(V3)
    world.client.is_away = False
    world.client.refused = {V2}
    process.await_registry()
    assert isinstance(process.value(V3), int), "one of before that is refused does not stop the next"
    assert world.client.versions["data-ks.t-value"] == [V1, V3]
    with pytest.raises(HelenusError) as raised:
        world.process().value(V2)
    assert raised.value.kind is Kind.REGISTRY_REFUSED


@pytest.mark.parametrize("other_is_away", [False, True])
def test_two_processes_at_once_agree_on_the_name_of_keys(world: World, other_is_away: bool) -> None:
    """The other one appends between this one's read and write; and compaction changes nothing of it."""
    process, other = world.process(), world.process()
    names: list[SchemaId] = []

    def other_first() -> None:
        world.client.is_away = other_is_away
        names.append(other.key())

    world.client.is_away = not other_is_away
    process.topic.before_write = other_first
    names.append(process.key())
    assert names[0] == names[1] == (guid(KEY) if other_is_away else 100)
    world.client.is_away = False
    last = {key: (key, value) for key, value in world.records}
    compacted = [record for index, record in enumerate(world.records) if record == last[record[0]]]
    del world.records[: len(world.records)]
    world.records.extend(compacted)
    assert world.process().key() == names[0]


def test_an_entry_that_two_append_keeps_its_first_place(world: World) -> None:
    world.client.is_away = True
    process, other = world.process(), world.process()
    process.topic.before_write = lambda: names.append(other.value(V1))
    names: list[SchemaId] = []
    names.append(process.value(V1))
    assert names == [guid(V1)] * 2
    (entry,) = world.entries()
    assert entry.order == 0
    assert parse_entry(*world.records[-1]).order == 0  # type: ignore[arg-type]


def test_an_entry_that_this_login_may_not_write_does_not_hold_up_others(world: World) -> None:
    """Somebody with larger records than ours left it without its order."""
    foreign = SchemaEntry("payments-value", V3, guid(V3), "deferred")
    world.records.append(foreign.to_record())
    process = world.process()
    write = process.topic._write

    def refuse_foreign(entry: SchemaEntry) -> None:
        if entry.subject == foreign.subject:
            raise HelenusError(Kind.RECORD_TOO_LARGE, "a record of 2 MB")
        write(entry)

    process.topic._write = refuse_foreign  # type: ignore[method-assign]
    world.client.is_away = True
    assert process.value(V1) == guid(V1)
    assert [parse_entry(*record).order for record in world.records if record[1]] == [-1, -1, 1]


def test_a_registration_that_fails_halfway_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it began, the registry's schemas forgot that they waited; the table itself did not change."""
    properties = {"name": "n", "keyspace": "ks", "table": "t", **URL, **DEFER}
    settings = ConnectorSettings.from_properties(properties, "test")
    table = Table("ks", "t", uuid.UUID(int=1), (Column("k", parse("int"), "partition_key", 0),))
    schemas: Any = SimpleNamespace(is_registration_due=False)
    made: list[str] = []
    failure: list[HelenusError] = []

    def make_shape_for(*_: object) -> tuple[str, Any]:
        schemas.is_registration_due = False
        if failure:
            raise failure.pop()
        made.append("shape")
        return "data-ks.t", None

    monkeypatch.setattr(
        _table_version,
        "read_definition",
        lambda session, settings, schema_state, request: None if schema_state else (1, table),
    )
    versions = _table_version.TableVersions(settings, None, schemas)
    monkeypatch.setattr(versions, "make_shape_for", make_shape_for)
    log: Any = None
    for _ in range(2):
        versions.follow(log)
    assert made == ["shape"]
    schemas.is_registration_due = True
    failure.append(HelenusError(Kind.BROKER_UNREACHABLE, "the topic of schemas does not answer"))
    with pytest.raises(HelenusError):
        versions.follow(log)
    for _ in range(2):
        versions.follow(log)
    assert made == ["shape", "shape"]


def test_only_the_part_that_is_to_be_deferred_is(tmp_path: Path) -> None:
    client = AwayClient()
    client.is_away = True
    process = Process(client, [], tmp_path / "x", set())
    schemas = DeferredSchemas(process.registry, process.topic, process.outage, is_key, lambda _: "data-ks.t")
    assert schemas.keep("data-ks.t-key", KEY, V1) == guid(KEY)
    with pytest.raises(HelenusError) as raised:
        schemas.register("data-ks.t-value", V1)
    assert raised.value.kind is Kind.REGISTRY_UNREACHABLE


def test_schemas_are_found_by_their_guid(world: World) -> None:
    world.client.is_away = True
    process = world.process()
    process.value(V1)
    assert world.process().schemas.schema(guid(V1)) == V1
    assert process.schemas.schema(uuid.uuid4()) is None


ENTRY = SchemaEntry("s-value", V1, guid(V1), "deferred", order=7)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"schema": V2}, "guid is not that"),
        ({"schema": V1.replace('","', '", "'), "guid": str(guid(V1.replace('","', '", "')))}, "form"),
        ({"schema": "{", "guid": str(guid("{"))}, ""),
        ({"schema": '"x"', "guid": str(guid('"x"'))}, "does not define"),
        ({"schema": None}, "no schema"),
        ({"schema": "\ud800"}, ""),
        ({"subject": "other-value"}, "key is another"),
        ({"subject": ""}, "no subject"),
        ({"subject": "x" * 2000}, "no subject"),
        ({"schemaType": "JSON"}, "none of an Avro"),
        ({"state": "done"}, "no state"),
        ({"state": ["deferred"]}, "no state"),
        ({"id": -1}, "id is none"),
        ({"id": True}, "id is none"),
        ({"id": 1 << 32}, "id is none"),
        ({"order": None}, "order"),
        ({"order": "1"}, "order"),
        ({"order": -2}, "order"),
        ({"reason": 5}, "no reason"),
    ],
)
def test_an_entry_that_is_wrong_counts_for_nothing(change: dict[str, object], problem: str) -> None:
    key, value = ENTRY.to_record()
    assert parse_entry(key, value) == ENTRY
    with pytest.raises(ValueError, match=problem or "."):
        parse_entry(key, json.dumps({**json.loads(value), **change}).encode())


@given(key=st.binary(max_size=80), value=st.binary(max_size=200))
def test_any_bytes_in_the_topic_are_an_entry_or_ignored(key: bytes, value: bytes) -> None:
    topic = MemoryTopic([(key, value), ENTRY.to_record(), (key, None), (b"[" * 100_000, b"[" * 100_000)])
    assert [entry.subject for entry in topic.entries()] == ["s-value"]


@given(
    value=st.none() | st.binary(max_size=80) | st.from_type(dict[str, str | None]).map(lambda d: json.dumps(d).encode())
)
def test_the_stack_reads_schemas_by_the_guids_that_their_texts_have(value: bytes | None) -> None:
    schema = _schema_with_guid(value)
    assert schema is None or schema[0] == guid(schema[1])
    entry = {**json.loads(ENTRY.to_record()[1]), "guid": str(uuid.UUID(int=1))}
    assert _schema_with_guid(json.dumps(entry).encode()) == (guid(V1), V1)


def test_a_topic_that_somebody_fills_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_schema_topic, "_MOST_BYTES", 1000)
    entries = [SchemaEntry(f"{n}-value", V1, guid(V1), "deferred").to_record() for n in range(20)]
    topic = MemoryTopic(list(entries))
    for _ in range(2):
        with pytest.raises(HelenusError, match="more than 1000 bytes"):
            topic.entries()


def test_frames() -> None:
    name = uuid.UUID(int=5)
    assert frame(7) + b"x" == b"\0\0\0\0\7x"
    assert split_frame(frame(7) + b"x") == (7, b"x")
    assert split_frame(frame(name) + b"x") == (name, b"x")
    assert frame(name) == b"\1" + name.bytes
    for data in (b"", b"\0\0", b"\1abc", b"\2abcdefghijklmnopqrst"):
        assert split_frame(data) is None


class OwnStore:
    """A store of a user's own."""

    texts: dict[str, list[str]] = {}

    def __init__(self, config: dict[str, str]) -> None:
        self.config = config

    def register(self, subject: str, schema: str) -> SchemaId:
        if error := self.config.get("error"):
            raise {"OSError": OSError, "ValueError": ValueError, "PermissionError": PermissionError}[error]("because")
        if "name" in self.config:
            return self.config["name"]  # type: ignore[return-value]
        texts = self.texts.setdefault(subject, [])
        if schema not in texts:
            texts.append(schema)
        return texts.index(schema) + 1

    def latest(self, subject: str) -> tuple[SchemaId, str] | None:
        texts = self.texts.get(subject)
        return (len(texts), texts[-1]) if texts else None

    def schema(self, schema_id: SchemaId) -> str | None:
        return next((t[schema_id - 1] for t in self.texts.values() if isinstance(schema_id, int)), None)

    def close(self) -> None: ...


def store_settings(store: str, **config: str) -> ConnectorSettings:
    properties = {"name": "n", "keyspace": "ks", "table": "t", "schema.store": store}
    properties |= {f"schema.store.config.{key}": value for key, value in config.items()}
    return ConnectorSettings.from_properties(properties, "test")


def worker(tmp_path: Path) -> WorkerSettings:
    properties = {"bootstrap.servers": "127.0.0.1:1", "checkpoint.dir": str(tmp_path)}
    return WorkerSettings.from_properties(properties, "test")


def test_a_store_of_ones_own(tmp_path: Path) -> None:
    OwnStore.texts = {}
    store: AvroSchemaStore = OwnStore({})
    assert store.latest("x") is None
    name = f"{__name__}:OwnStore"
    schemas = record_schemas(worker(tmp_path), store_settings(name), tmp_path / "ids")
    assert schemas.keep("t-key", KEY, V1) == 1
    assert schemas.register("t-value", V1) == 1
    assert schemas.register("t-value", V2) == 2
    assert schemas.keep("t-key", RENAMED_KEY, V1) == 1, "keys keep their bytes in any store"
    with pytest.raises(HelenusError) as raised:
        schemas.keep("t-key", OTHER_KEY, V1)
    assert raised.value.kind is Kind.REGISTRY_REFUSED
    schemas.close()


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"error": "OSError"}, Kind.REGISTRY_UNREACHABLE),
        ({"error": "ValueError"}, Kind.REGISTRY_REFUSED),
        ({"error": "PermissionError"}, Kind.REGISTRY_AUTH),
        ({"name": "x"}, Kind.CONFIG),
    ],
)
def test_errors_of_a_store(tmp_path: Path, config: dict[str, str], kind: Kind) -> None:
    settings = store_settings(f"{__name__}:OwnStore", **config)
    with pytest.raises(HelenusError) as raised:
        record_schemas(worker(tmp_path), settings, tmp_path / "ids").register("t-value", V1)
    assert raised.value.kind is kind


def test_the_topic_as_a_store() -> None:
    records: list[Record] = []
    store = TopicSchemaStore(MemoryTopic(records), is_compatible=True)
    schemas = StoreSchemas(store, "topic")
    assert schemas.keep("t-key", KEY, V1) == guid(KEY)
    assert schemas.register("t-value", V1) == guid(V1)
    assert schemas.register("t-value", V2) == guid(V2)
    assert schemas.schema(guid(V2)) == V2
    assert StoreSchemas(TopicSchemaStore(MemoryTopic(records), True), "topic").register("t-value", V1) == guid(V1)
    other = schema_of("a", kind="bytes").replace('["null","bytes"]', '"int"').replace(',"default":null', "")
    with pytest.raises(HelenusError, match="not compatible") as raised:
        schemas.register("t-value", other)
    assert raised.value.kind is Kind.REGISTRY_REFUSED
    assert StoreSchemas(TopicSchemaStore(MemoryTopic(records), False), "topic").register("t-value", other) == guid(
        other
    )


@pytest.mark.parametrize("state", ["deferred", "refused"])
def test_the_topic_as_a_store_takes_what_once_waited_for_a_registry(state: State) -> None:
    records = [SchemaEntry("t-value", V1, guid(V1), state).to_record()]
    for _ in range(2):
        assert TopicSchemaStore(MemoryTopic(records), True).register("t-value", V1) == guid(V1)  # type: ignore[arg-type]
    assert [(entry.state, entry.order) for entry in MemoryTopic(records).entries()] == [("registered", 0)]  # type: ignore[arg-type]


def test_two_schemas_that_do_not_go_together_registered_at_once() -> None:
    records: list[Record] = []
    other = schema_of("a", kind="string")
    first, second = (TopicSchemaStore(MemoryTopic(records), True) for _ in range(2))
    first._topic.before_write = lambda: second.register("t-value", other)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="not compatible"):
        first.register("t-value", V1)
    assert second.latest("t-value") == (guid(other), other)
    assert TopicSchemaStore(MemoryTopic(records), True).latest("t-value") == (guid(other), other)


@pytest.mark.parametrize(
    ("properties", "key", "reason"),
    [
        ({**DEFER, "output.format": "json"}, "key.schema.registration", "JSON"),
        ({"schema.store": "topic", "output.format": "key-value-json"}, "schema.store", "JSON"),
        ({**DEFER, "value.converter.auto.register.schemas": "false"}, "key.schema.registration", "auto.register"),
        ({**DEFER, "value.converter.normalize.schemas": "true"}, "key.schema.registration", "normalize"),
        ({**DEFER, "schema.store": "topic"}, "key.schema.registration", "schema.store=topic"),
        (
            {"value.schema.registration": "defer", "message.key.columns": "ks.t:k"},
            "value.schema.registration",
            "message.key.columns",
        ),
        (
            {
                **DEFER,
                "value.converter": "io.confluent.connect.protobuf.ProtobufConverter",
                "key.converter": "io.confluent.connect.avro.AvroConverter",
            },
            "key.schema.registration",
            "value.converter",
        ),
        ({"schema.store": "nothing"}, "schema.store", "confluent, topic"),
        ({"schema.store": "no_such_module:X"}, "schema.store", "can't be imported"),
        ({"schema.store": "json:JSONDecoder"}, "schema.store", "no class JSONDecoder"),
        ({"schema.store": "topic", "schema.store.config.compatibility": "FULL"}, "schema.store.config", "BACKWARD"),
        ({"key.schema.registration": "later"}, "key.schema.registration", "block"),
    ],
)
def test_settings_that_do_not_go_together(properties: dict[str, str], key: str, reason: str) -> None:
    with pytest.raises(ConfigError) as raised:
        ConnectorSettings.from_properties({"name": "n", "keyspace": "ks", "table": "t", **URL, **properties}, "test")
    assert any(problem.key.startswith(key) and reason in str(problem) for problem in raised.value.problems), (
        raised.value
    )


@pytest.mark.parametrize("properties", [DEFER, {"schema.store": "topic"}])
def test_pulsar_keeps_schemas_itself(properties: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="Pulsar keeps its schemas itself"):
        PulsarConnectorSettings.from_properties({"name": "n", "keyspace": "ks", "table": "t", **properties}, "test")


def test_a_class_over_rest_has_to_be_allowed() -> None:
    properties = {"name": "n", "keyspace": "ks", "table": "t", "schema.store": f"{__name__}:OwnStore"}
    with pytest.raises(ConfigError, match=r"plugin\.packages"):
        Model(ConnectorSettings).read_settings(properties, "n")
    Model(ConnectorSettings, packages=(__name__,)).read_settings(properties, "n")
    Model(ConnectorSettings).read_settings(properties, "n", file=properties)
    with pytest.raises(ValueError, match="can't be imported"):
        find_store_class("no_such.module:X")


def test_the_driver_registers_subjects_of_its_tables_alone() -> None:
    properties = {"name": "n", "keyspace": "ks", "table": "t", **URL, **DEFER}
    tables = subject_prefixes([ConnectorSettings.from_properties(properties, "test")])
    for subject in (
        "data-ks.t-key",
        "data-ks.t-value",
        "data-ks.t-truncation",
        "data-ks.t-0a1b2c3d-value",
        "data-ks.t-key-nullable",
    ):
        assert is_own(subject, tables)
    for subject in (
        "payments-value",
        "data-ks.t2-value",
        "data-ks.t",
        "data-ks.t-value-x",
        "xdata-ks.t-value",
        "-value",
    ):
        assert not is_own(subject, tables)
    shared = {**properties, "table": "t,u", "data.topic": "all"}
    shared_table = ConnectorSettings.from_properties(shared, "test").of_table("t")
    (prefix,) = in_one_topic = subject_prefixes([shared_table])
    assert is_own(f"{prefix}-value", in_one_topic)
    assert not is_own(f"{prefix}-0a1b2c3d-value", in_one_topic)
    assert not is_own("all-value", in_one_topic)
    blocked = ConnectorSettings.from_properties({**properties, "key.schema.registration": "block"}, "test")
    values = subject_prefixes([blocked])
    assert not is_own("data-ks.t-key", values)
    assert is_own("data-ks.t-value", values)


def test_the_driver_registers_what_waits_once_and_tries_refused_ones_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = world.process()
    process.value(V1)
    world.client.is_away = True
    process.value(V2)
    process.value(V3)
    properties = {"name": "n", "keyspace": "ks", "table": "t", **URL, **DEFER}
    tables = [(ConnectorSettings.from_properties(properties, "test"), ("t",))]
    topic = MemoryTopic(world.records)
    monkeypatch.setattr(registrar, "schema_topic", lambda *_: topic)

    def registry_of(*arguments: Any) -> Registry:
        registry = Registry(*arguments)
        registry.__dict__["_client"] = world.client
        return registry

    monkeypatch.setattr(registrar, "Registry", registry_of)
    later = SchemaRegistrar(worker(tmp_path), SimpleNamespace(all=dict), lambda _: None)  # type: ignore[arg-type]
    later.register(tables, tmp_path)
    assert [e.state for e in world.entries()] == ["deferred", "deferred"]
    world.client.is_away = False
    world.client.refused = {V2}
    later._retry_at.clear()
    later.register(tables, tmp_path)
    assert [e.state for e in world.entries()] == ["refused", "registered"]
    assert later.refusal is not None
    assert "data-ks.t-value" in later.refusal
    world.client.refused = set()
    later.register(tables, tmp_path)
    assert later.refusal is not None, "not at once"
    later._refused_at.clear()
    later.register(tables, tmp_path)
    assert [e.state for e in world.entries()] == ["registered", "registered"]
    assert later.refusal is None
    requests = world.client.requests
    later.register(tables, tmp_path)
    assert world.client.requests == requests


def test_what_goes_wrong_in_the_drivers_thread_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is no answer of a server, such as a full disk."""

    def fail(*_: object) -> SchemaTopic:
        raise OSError("no space left")

    monkeypatch.setattr(registrar, "schema_topic", fail)
    properties = {"name": "n", "keyspace": "ks", "table": "t", **URL, **DEFER}
    tables = [(ConnectorSettings.from_properties(properties, "test"), ("t",))]
    later = SchemaRegistrar(worker(tmp_path), SimpleNamespace(all=dict), lambda _: None)  # type: ignore[arg-type]
    with capture_logs() as logs:
        later.register(tables, tmp_path)
    assert [entry["event"] for entry in logs] == ["schemas.waiting"]
    assert "no space left" in logs[0]["reason"]
