"""Records of `output.format=debezium` are read by Flink's own reader of `debezium-json`."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agent.writer import Marker, Row
from connector.test_envelope import TABLE as WIDE
from connector.test_envelope import Made, int32
from connector.test_resolver_merge import AS_JSON, NOW, T, events, i, insert, update
from connector.test_resolver_merge import Path as Merging
from schemas.java import Program

from helenus_connector.interfaces.image import Image, LiveRow
from helenus_connector.shape.choice import make_shape
from helenus_schemas.event.change import Change, Origin, Scope
from helenus_schemas.event.wire import encode

pytestmark = pytest.mark.integration
HERE = Path(__file__).parent
JSON = {
    "output.format": "debezium",
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
}
WITHOUT_SCHEMA = {**JSON, "key.converter.schemas.enable": "false", "value.converter.schemas.enable": "false"}


@pytest.fixture(scope="module")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(tmp_path_factory.mktemp("java"), HERE / "FlinkDebezium.java", HERE / "flink.lock")


def rows_of(flink: Program, values: Sequence[bytes | None], has_schema: bool = False) -> list[str]:
    """The rows, with their kinds, that Flink makes of each record's value: of k, c, v and w."""
    lines = "".join(f"{(value or b'').decode()}\n" for value in values)
    columns = ("k:INT", "c:INT", "v:INT", "w:STRING")
    answers = flink.run(str(has_schema).lower(), *columns, lines=lines).split("\n")
    assert answers.pop() == ""
    return answers


@pytest.mark.parametrize("form", [WITHOUT_SCHEMA, JSON], ids=["bare", "with-schema"])
def test_rows_that_were_read_are_inserts(flink: Program, form: dict[str, str]) -> None:
    made = Made(WIDE, **form)
    image = Image((None, None, None, int32(5), b"w", None), T)
    marker = made.was_read(Image((None, None, None, None, None, b"s"), T), scope=Scope.PARTITION)
    key = made.codec.encode((int32(7), int32(1)))
    marker.read_rows = lambda _: iter((LiveRow(key, (int32(7), int32(1)), image),))
    resolved_keys = [
        made.was_read(image),
        made.was_read(image, encode(Change(None, None, origin=Origin.SNAPSHOT))),
        made.was_read(None),
        marker,
    ]
    shape = make_shape(made.table, made.settings, made.registry)
    shaped = [record for resolved in resolved_keys for record in shape.records(resolved)]
    answers = rows_of(
        flink, [record.record.value for record in shaped if record], "value.converter.schemas.enable" not in form
    )
    live = "+I 7,1,5,w"
    # The tombstone after a delete is passed over; a partition's delete and its static columns are no rows of the table.
    assert answers == [live, live, "-D 7,1,null,null", "", "-D 7,null,null,null", "", "+I 7,null,null,null", live]


def test_changes_with_state_are_the_table(flink: Program) -> None:
    """Each change takes away the row as it was, exactly: what is left are the rows of the table."""
    seed = random.Random(44)
    path = Merging(**{**AS_JSON, **WITHOUT_SCHEMA}, state="rows", markers="false", **{"query.group": "n"})
    for n in range(300):
        match seed.choice(("write", "write", "write", "row", "range", "partition")):
            case "write":
                change = insert(seed.randrange(5), n, **dict.fromkeys(seed.sample("vw", seed.randrange(3)), n))
            case "row":
                change = update(Row((i(seed.randrange(5)),), deletion=(T + n, NOW)))
            case "range":
                first, last = sorted((seed.randrange(5), seed.randrange(5)))
                ends = ((1, first), (6, last))
                change = update(*(Marker(kind, (i(c),), ((T + n, NOW),)) for kind, c in ends))
            case _:
                change = update(deletion=(T + n, NOW))
        path.upsert(events(change, offset=n))
    table: Counter[str] = Counter()
    values = [record.value for record in path.log.records("data")]
    for value, answer in zip(values, rows_of(flink, values), strict=True):
        assert not answer.startswith("error"), (value, answer)
        for row in filter(None, answer.split("; ")):
            kind, columns = row.split(" ")
            table[columns] += 1 if kind in ("+I", "+U") else -1
            assert table[columns] in (0, 1), (value, answer)
    assert {columns for columns, count in table.items() if count} == set(
        map(_columns, filter(None, path.last.values()))
    )
    assert any("; " in answer for answer in rows_of(flink, values)), "no update was made"


def _columns(envelope: Any) -> str:
    row = envelope["after"]
    return ",".join("null" if row[name] is None else str(row[name]) for name in ("k", "c", "v", "w"))
