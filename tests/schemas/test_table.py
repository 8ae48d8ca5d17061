"""Types and tables as system_schema defines them."""

import pickle
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from helenus_schemas.cql.table import is_newer_table, read_tables
from helenus_schemas.cql.types import parse, quote
from helenus_schemas.errors import POLICIES, HelenusError, Kind, error_in
from helenus_schemas.event import placement

ID = uuid.UUID(int=7)


class SystemSchema:
    """Answers the four queries of read_tables from rows."""

    def __init__(self, **tables: list[dict[str, Any]]) -> None:
        self.tables = tables

    def execute(self, query: str, args: object = None) -> list[SimpleNamespace]:
        name = query.split("system_schema.")[1].split()[0]
        return [SimpleNamespace(**row) for row in self.tables.get(name, [])]


def column(name: str, t: str, kind: str = "regular", position: int = -1, order: str = "none") -> dict[str, Any]:
    row = {"column_name": name, "type": t, "kind": kind, "position": position, "clustering_order": order, "added": 5}
    return {"keyspace_name": "ks", "table_name": "t", **row}


def schema(*columns: dict[str, Any], **more: list[dict[str, Any]]) -> SystemSchema:
    table = {"keyspace_name": "ks", "table_name": "t", "id": ID, "cdc": True, "gc_grace_seconds": 60}
    return SystemSchema(tables=[table], columns=list(columns), **more)


def test_of_one_table_only_its_own_rows_are_asked_for() -> None:
    """A keyspace of hundreds is read in as many times; its types have no table."""
    conditions: dict[str, tuple[str, object]] = {}

    class Asked(SystemSchema):
        def execute(self, query: str, args: object = None) -> list[SimpleNamespace]:
            conditions[query.split("system_schema.")[1].split()[0]] = query.partition(" WHERE ")[2], args
            return super().execute(query, args)

    assert read_tables(Asked(), "ks", "t") == {}
    of_table = "keyspace_name = %s AND table_name = %s", ("ks", "t")
    of_keyspace = "keyspace_name = %s", ("ks",)
    assert conditions == {"types": of_keyspace, "columns": of_table, "dropped_columns": of_table, "tables": of_table}
    read_tables(Asked(), "ks")
    assert set(conditions.values()) == {of_keyspace}
    read_tables(Asked())
    assert set(conditions.values()) == {("", None)}


@pytest.mark.parametrize(
    "text",
    ["int", "frozen<map<text, frozen<list<int>>>>", "tuple<int, text>", "vector<float, 3>", "set<uuid>", "'x.Y'"],
)
def test_types_print_as_they_are_read(text: str) -> None:
    assert str(parse(text)) == text


@pytest.mark.parametrize("text", ["", "map<text", "nothing", "list<int>>", "int int"])
def test_text_that_is_no_type(text: str) -> None:
    with pytest.raises(ValueError, match="CQL type"):
        parse(text)


def test_the_type_of_an_old_compact_table_has_no_bytes() -> None:
    assert parse("empty").label.endswith("EmptyType")


def test_a_user_type_of_that_name_is_another_type() -> None:
    types = [{"keyspace_name": "ks", "type_name": "empty", "field_names": ["a"], "field_types": ["int"]}]
    key = column("pk", "int", "partition_key", 0)
    column_type = read_tables(schema(key, column("v", "frozen<empty>"), types=types))[ID].values[0].type
    assert (column_type.name, column_type.label, column_type.fields) == ("udt", "empty", ("a",))


def test_a_table_that_is_created_meanwhile_is_not_there_yet() -> None:
    """Its columns were asked for before it."""
    assert read_tables(schema(), "ks", "t") == {}


def test_a_table_with_everything() -> None:
    tables = read_tables(
        schema(
            column("ck", "int", "clustering", 0, "desc"),
            column("pk", "text", "partition_key", 0),
            column("s", "int", "static"),
            column("b", "frozen<outer_type>"),
            column("A b", "int"),
            types=[
                {"keyspace_name": "ks", "type_name": n, "field_names": f, "field_types": t}
                for n, f, t in (("outer_type", ["i"], ["frozen<inner_type>"]), ("inner_type", ["x"], ["int"]))
            ],
            dropped_columns=[{**column("gone", "text"), "at": 1_700_000_000_123}],
        )
    )
    table = tables[ID]
    assert [c.name for c in table.primary_key] == ["pk", "ck"]
    assert [c.name for c in table.values] == ["A b", "b", "s"]
    assert table.column("gone") is not None
    assert table.dropped_at == {"gone": 1_700_000_000_123_000}
    assert table.added_at == dict.fromkeys(("pk", "ck", "A b", "b", "s"), 5)
    assert table.gc_grace_s == 60
    assert table.cql == (
        "CREATE TYPE ks.inner_type (x int);\n"
        "CREATE TYPE ks.outer_type (i frozen<inner_type>);\n"
        'CREATE TABLE ks.t (pk text, ck int, "A b" int, b frozen<outer_type>, s int static, '
        "PRIMARY KEY ((pk), ck)) WITH CLUSTERING ORDER BY (ck DESC);"
    )


def test_the_schema_id_follows_columns_and_types() -> None:
    first = read_tables(schema(column("pk", "int", "partition_key", 0)))[ID]
    two = read_tables(schema(column("pk", "int", "partition_key", 0), column("v", "int")))[ID]
    assert first.schema_id != two.schema_id
    assert first.schema_id == read_tables(schema(column("pk", "int", "partition_key", 0)))[ID].schema_id


@pytest.mark.parametrize(
    ("width", "t"),
    [
        (4, "int"),
        (8, "timestamp"),
        (0, "smallint"),
        (0, "date"),
        (12, "vector<float, 3>"),
        (0, "vector<text, 2>"),
        (16, "'org.apache.cassandra.db.marshal.LexicalUUIDType'"),
        (0, "'x.Y'"),
    ],
)
def test_widths_in_the_commit_log(width: int, t: str) -> None:
    assert parse(t).width == width


def test_partition_of_a_token() -> None:
    assert placement.partition(-(1 << 63), 7) == 0
    assert placement.partition((1 << 63) - 1, 7) == 65535 % 7
    assert {placement.partition(t << 48, 4) for t in range(-8, 8)} == {0, 1, 2, 3}


def test_a_table_of_some_columns() -> None:
    columns = [column("pk", "int", "partition_key", 0), column("ck", "int", "clustering", 0)]
    columns += [column("a", "int"), column("ab", "int"), column("s", "int", "static")]
    whole = read_tables(schema(*columns))[ID]
    assert whole.select_columns(".*") is whole
    selected = whole.select_columns("a|s")
    assert [c.name for c in selected.primary_key + selected.values] == ["pk", "ck", "a", "s"]
    assert selected.schema_id != whole.schema_id
    assert whole.select_columns("none").values == ()


def test_types_whose_names_need_quotes() -> None:
    types = [
        {"keyspace_name": "ks", "type_name": n, "field_names": f, "field_types": t}
        for n, f, t in (('Out"er', ["A b"], ['frozen<"In ner">']), ("In ner", ["x"], ["int"]), ("int", ["i"], ["int"]))
    ]
    tables = read_tables(
        schema(column("pk", 'frozen<"Out""er">', "partition_key", 0), column("v", '"int"'), types=types)
    )
    pk, v = tables[ID].columns
    assert (pk.type.label, pk.type.args[0].label, v.type.name) == ('Out"er', "In ner", "udt")


@pytest.mark.parametrize(
    "types",
    [
        [("a", ["n"], ["bigint"]), ("b", ["x"], ["frozen<a>"])],
        [("t", ["i"], ["uuid"]), ("u", ["s"], ["text"])],
        [("int", ["i"], ["set<int>"]), ("set", ["s"], ['frozen<"int">'])],
    ],
)
def test_types_whose_names_are_in_other_names(types: list[tuple[str, list[str], list[str]]]) -> None:
    rows = [{"keyspace_name": "ks", "type_name": n, "field_names": f, "field_types": t} for n, f, t in types]
    tables = read_tables(schema(column("pk", "int", "partition_key", 0), column("v", f'"{types[1][0]}"'), types=rows))
    assert tables[ID].columns[1].type.label == types[1][0]


def test_every_kind_of_error_has_a_policy_with_advice() -> None:
    assert set(POLICIES) == set(Kind)
    assert all(p.advice for p in POLICIES.values())


@pytest.mark.parametrize("kind", Kind)
def test_an_error_survives_the_text_of_a_traceback(kind: Kind) -> None:
    error = HelenusError(kind, "what", "where")
    text = f"Traceback (most recent call last):\n  x\nx.HelenusError: {error}\n\tat java.lang.Thread"
    read_error = error_in(text)
    assert read_error is not None
    assert (read_error.kind, str(read_error)) == (kind, str(error))
    assert error_in("ValueError: [config]") is None
    assert pickle.loads(pickle.dumps(error)).kind is kind


@pytest.mark.parametrize(
    ("name", "quoted"),
    [("a_1", "a_1"), ("key", "key"), ("select", '"select"'), ("true", '"true"'), ("A", '"A"'), ('a"b', '"a""b"')],
)
def test_names_that_are_words_of_cql_are_quoted(name: str, quoted: str) -> None:
    assert quote(name) == quoted


_STATIC = (column("column1", "text", "clustering", 0), column("v", "int", "static"), column("value", "blob"))
_DENSE = (column("c", "int", "clustering", 0), column("v", "int"))


@pytest.mark.parametrize(
    ("flags", "columns", "unsupported"),
    [
        ((), _STATIC, True),
        (("dense",), (column("c", "int", "clustering", 0), column("value", "empty")), True),
        (("compound", "dense"), (column("c", "int", "clustering", 0), column("value", "empty")), True),
        (("dense", "super"), _DENSE, True),
        (("dense",), _DENSE, False),
        (("compound", "dense"), _DENSE, False),
        (("counter", "dense"), _DENSE, False),
        (("compound",), (column("value", "empty"),), False),
        (("compound", "counter"), _DENSE, False),
        (None, _STATIC, False),
    ],
)
def test_compact_tables_with_hidden_columns(flags: Any, columns: Any, unsupported: bool) -> None:
    """As Cassandra 5.0.9 has them: what CQL made with COMPACT STORAGE, and what is left when that is dropped."""
    definitions = schema(column("k", "int", "partition_key", 0), *columns)
    definitions.tables["tables"][0]["flags"] = flags
    table = read_tables(definitions)[ID]
    assert table.hides_columns == unsupported
    assert ("DROP COMPACT STORAGE" in (table.unsupported or "")) == unsupported


@pytest.mark.parametrize("advice", ["", "do this; or that"])
def test_advice_goes_by_the_cause(advice: str) -> None:
    error = HelenusError(Kind.CONFIG, "a: b", "where", advice)
    assert error.advice == (advice or POLICIES[Kind.CONFIG].advice)
    assert str(error) == f"a: b (where): {error.advice} [config]"
    read_error = error_in(f"Traceback\nx.HelenusError: {error}\n\tat java.lang.Thread")
    assert read_error is not None
    for same in (read_error, pickle.loads(pickle.dumps(error)), error.with_location("where")):
        assert (same.kind, str(same), same.advice) == (error.kind, str(error), error.advice)


def test_ids_tell_which_table_was_created_later() -> None:
    """Ids of Cassandra 6.0 have the epoch of the cluster's metadata instead of a time."""
    first, second = (uuid.UUID(f"{time}-9ba3-11f0-8de9-0242ac120002") for time in ("9ba3ce50", "9ba3ce51"))
    third, fourth = (uuid.UUID(f"1b255f4d-ef25-40a6-0000-0000000000{epoch}") for epoch in ("0f", "10"))
    chosen = uuid.uuid4()  # CREATE TABLE ... WITH ID
    ids = [first, second, third, fourth]
    for i, table in enumerate(ids):
        assert [is_newer_table(table, other) for other in ids] == [i > j for j in range(4)]
        assert not is_newer_table(chosen, table)
    assert not is_newer_table(first, chosen)
