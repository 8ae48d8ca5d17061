"""A key's schema through a table's life: kept where names alone changed, refused where they would be wrong."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.shape.encoding.registry import Registry
from helenus_connector.shape.row.row import RowShape, row_schemas
from helenus_connector.testing.registry import RegistryClient
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.log import DeclaredSchemas
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.errors import AUTHORIZATION, TOPIC_NOT_FOUND, broker_error
from helenus_sinks.pulsar.log import PulsarLog
from helenus_sinks.pulsar.wire import schema_of

OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)
SETTINGS = ConnectorSettings.from_properties(
    {"name": "n", "keyspace": "ks", "table": "t", "value.converter.schema.registry.url": "http://registry"}, "test"
)


def table(keys: str, *values: str, table_id: uuid.UUID = OLD, t: str = "int") -> Table:
    """`keys` are columns of the primary key, the first one the partition key."""
    names = keys.split()
    made = [Column(n, parse(t), "clustering" if i else "partition_key", max(i - 1, 0)) for i, n in enumerate(names)]
    return Table("ks", "t", table_id, (*made, *(Column(n, parse(t)) for n in values)), cdc=True)


def typed(t: str, *fields: str) -> Table:
    """A table whose key is of a type with these fields, or of one with that in the place of `{}`."""
    place_type = CqlType("udt", (parse("int"),) * len(fields), label="place", fields=fields)
    key = Column("k", parse(t.format("frozen<place>"), {"place": place_type}), "partition_key", 0)
    return Table("ks", "t", OLD, (key, Column("v", parse("int"))), cdc=True)


class Keys:
    """The keys' schema of a table, in a registry. `keep_schemas` returns its id."""

    def __init__(self, directory: Path) -> None:
        self.client = RegistryClient()
        self.registry = Registry(SETTINGS, directory / "schemas")
        self.registry.__dict__["_client"] = self.client

    @property
    def versions(self) -> list[str]:
        return self.client.versions["data-ks.t-key"]

    def keep_schemas(self, definition: Table) -> int:
        return self.registry.keep("data-ks.t-key", *row_schemas(definition, SETTINGS))


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


def test_a_renamed_column_keeps_the_schema(keys: Keys) -> None:
    assert keys.keep_schemas(table("k c", "v")) == 1
    assert keys.keep_schemas(table("k d", "v")) == 1
    assert keys.keep_schemas(table("k d", "v", "w")) == 1
    requests_before = keys.client.asked
    assert keys.keep_schemas(table("k d", "v", "w")) == 1
    assert keys.client.asked == requests_before, "it is remembered"
    assert len(keys.versions) == 1


def test_a_renamed_field_of_a_type_keeps_the_schema(keys: Keys) -> None:
    assert keys.keep_schemas(typed("{}", "a", "b")) == keys.keep_schemas(typed("{}", "c", "b")) == 1


def test_a_value_of_key_columns_only_keeps_the_schema_too(keys: Keys) -> None:
    """Its partition key is not nullable, and no registry takes such a field under another name."""
    versions = keys.client.versions
    for definition in (table("k c"), table("n c")):
        RowShape(definition, SETTINGS, keys.registry)
    assert [len(versions[f"data-ks.t-{part}"]) for part in ("key", "value")] == [1, 1]
    RowShape(table("n c", "v"), SETTINGS, keys.registry)
    assert [len(versions[f"data-ks.t-{part}"]) for part in ("key", "value")] == [1, 2]


@pytest.mark.parametrize(("chosen", "then"), [(None, "BACKWARD"), ("NONE", "NONE"), ("FULL", "FULL")])
def test_a_level_that_somebody_chose_stays(keys: Keys, chosen: str | None, then: str) -> None:
    """One that is left to a registry without a level becomes BACKWARD."""
    if chosen is not None:
        keys.client.levels["data-ks.t-value"] = chosen
    assert keys.registry.register("data-ks.t-value", '"int"') == 1
    assert (keys.client.levels["data-ks.t-value"], keys.client.asked) == (then, 2 if chosen is None else 1)


@pytest.mark.parametrize("level", ["BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FULL", "FULL_TRANSITIVE"])
def test_the_registry_s_own_level_is_left_to_count(keys: Keys, level: str) -> None:
    """To set one needs rights that registering needs not."""
    keys.client.level, keys.client.may_set = level, False
    with capture_logs() as logs:
        assert keys.registry.register("data-ks.t-value", '"int"') == 1
    assert (keys.client.levels, logs) == ({}, [])


def test_a_login_that_may_not_set_a_level_registers(keys: Keys) -> None:
    keys.client.may_set = False
    with capture_logs() as logs:
        assert keys.registry.register("data-ks.t-value", '"int"') == 1
    assert [(entry["event"], entry["subject"]) for entry in logs] == [("registry.level_not_set", "data-ks.t-value")]


REFUSED = [
    pytest.param(
        table("a b"), table("b a", table_id=NEW), r"written as \(a, b\), and .* recreated with the key \(b, a\)"
    ),
    pytest.param(
        table("id", "email", t="text"), table("email", "id", table_id=NEW, t="text"), r"recreated .* \(email\)"
    ),
    pytest.param(table("k c"), table("k d", table_id=NEW), r"recreated .* \(k, d\)"),
    # BACKWARD takes a column more, which is nullable: the rows of before would stay for ever, under keys that lack it.
    pytest.param(table("k"), table("k c", table_id=NEW), r"recreated .* \(k, c\)"),
    pytest.param(table("k c", "v"), table("k c", "v", table_id=NEW, t="text"), r"recreated .* \(k, c\)"),
    pytest.param(table("id"), table("number", "id"), r"written as \(id\), and id is the name of another"),
    pytest.param(table("k a b"), table("k b a"), r"written as \(k, a, b\), and a, b is the name of another"),
    *(
        pytest.param(
            typed(t, "a", "b"), typed(t, "c", "a"), rf"written as \(k\), and k\.{path}a is the name of another"
        )
        for t, path in {
            "{}": "",
            "frozen<list<{}>>": "",
            "tuple<int, {}>": "index_1.",
            "frozen<map<int, {}>>": "value.",
            "frozen<map<text, frozen<set<{}>>>>": "",
        }.items()
    ),
]


@pytest.mark.parametrize(("before", "now", "message"), REFUSED)
def test_names_that_would_be_wrong_are_refused(keys: Keys, before: Table, now: Table, message: str) -> None:
    keys.keep_schemas(before)
    for _ in range(2):
        with pytest.raises(HelenusError, match=message) as error:
            keys.keep_schemas(now)
        assert error.value.kind is Kind.REGISTRY_REFUSED
    assert len(keys.versions) == 1
    assert keys.keep_schemas(before) == 1


def test_a_table_recreated_with_the_same_key_keeps_its_schema(keys: Keys) -> None:
    """Its id is another: a new version would give every row another key, and readers would learn nothing."""
    assert keys.keep_schemas(table("k c", "v")) == keys.keep_schemas(table("k c", "w", table_id=NEW)) == 1
    assert len(keys.versions) == 1


def test_a_schema_from_before_ids_is_taken_for_the_tables(keys: Keys) -> None:
    key = json.loads(row_schemas(table("k c"), SETTINGS)[0])
    del key["cql_id"]
    keys.versions.append(json.dumps(key))
    assert keys.keep_schemas(table("k d")) == 1
    with pytest.raises(HelenusError, match="another column"):
        keys.keep_schemas(table("k d", "c"))


@pytest.mark.parametrize("theirs", ["string", ["null", "int"], {"type": "map", "values": "int"}])
def test_a_subject_with_foreign_schemas_is_judged_by_the_registry(keys: Keys, theirs: object) -> None:
    keys.versions.append(json.dumps(theirs))
    assert keys.keep_schemas(table("k")) == 2


def declared(definition: Table) -> DeclaredSchemas:
    return DeclaredSchemas(*row_schemas(definition, SETTINGS))


@pytest.mark.parametrize(("before", "now", "message"), REFUSED)
def test_pulsar_refuses_the_same(before: Table, now: Table, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it refuses the new schema, and would take the new value with the key of before."""
    with pytest.raises(HelenusError, match=message) as error:
        pulsar(declared(before), monkeypatch)._topic_schemas.register("data-ks.t", declared(now))
    assert error.value.kind is Kind.REGISTRY_REFUSED


def pulsar(before: DeclaredSchemas, monkeypatch: pytest.MonkeyPatch) -> PulsarLog:
    """A Log whose topic has schemas, and takes no other key's."""
    log = PulsarLog(PulsarConfig("pulsar://localhost:1"))

    def registered(topic: str, schemas: DeclaredSchemas) -> tuple[Any, bytes]:
        if schemas.key != before.key:
            raise HelenusError(Kind.REGISTRY_REFUSED, "incompatible")
        return schemas, b""

    monkeypatch.setattr(log, "_answer", lambda question: schema_of(before))
    monkeypatch.setattr(log._topic_schemas, "_register", registered)
    return log


@pytest.mark.parametrize("code", [TOPIC_NOT_FOUND, AUTHORIZATION])
def test_a_topic_of_pulsars_whose_schema_nobody_knows(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """That is what it says of one that has none yet."""
    new = declared(table("k c", "v"))
    log = pulsar(new, monkeypatch)

    def refuse(question: object) -> Any:
        raise broker_error(code, "Topic not found or no-schema", "b")

    monkeypatch.setattr(log, "_answer", refuse)
    assert log._topic_schemas.register("data-ks.t", new)[0] == new


def test_pulsar_keeps_what_a_registry_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    before = declared(table("k c", "v"))
    for now in (table("k d", "v"), table("k c", "w", table_id=NEW)):
        new = declared(now)
        assert pulsar(before, monkeypatch)._topic_schemas.register("data-ks.t", new)[0] == replace(new, key=before.key)
    before = declared(table("k c"))
    schemas_kept, _ = pulsar(before, monkeypatch)._topic_schemas.register("data-ks.t", declared(table("n c")))
    assert schemas_kept == before, "the value goes by the key's schema"
    in_json = [replace(declared(definition), kind="JSON") for definition in (table("k c", "v"), table("k d", "v"))]
    with pytest.raises(HelenusError, match="incompatible"):  # there names are in the records
        pulsar(in_json[0], monkeypatch)._topic_schemas.register("data-ks.t", in_json[1])
