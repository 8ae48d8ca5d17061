"""Type converters of a user's own: columns in rows and envelopes, and what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from connector.staged import ALL, DATA, DEAD_LETTERS, Staged, int32
from connector.test_transforms import PAGE, T, staged, written

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.connect_data.schema import ConnectSchema
from helenus_connector.interfaces.image import Image
from helenus_schemas.cql.table import Column
from helenus_schemas.cql.types import parse
from helenus_schemas.event.change import Change, Effect, Scope
from helenus_schemas.settings.properties import ConfigError

PLUG_POINTS = PAGE.with_name("plug-points.md")
WIDE = replace(T, columns=(*T.columns, Column("w", parse("text")), Column("op", parse("text"))))


class Hexadecimal:
    """Publishes int columns as text; 13 has no form."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._prefix = config.get("prefix", "")
        if self._prefix == "none":
            raise ValueError("no prefix")

    def convert_schema(self, column: str, schema: ConnectSchema) -> ConnectSchema | None:
        return ConnectSchema("string", name="ours.Hex") if schema.type == "int32" else None

    def convert_value(self, column: str, value: Any) -> Any:
        if value == 13:
            raise RuntimeError("thirteen")
        return f"{self._prefix}{value:x}"


class Lacking:
    """No converter."""


OWN = {"converter": f"{__name__}:Hexadecimal", "config": "prefix=0x"}


def converted(**keys: str) -> dict[str, str]:
    named = {f"transforms.a.{key}": value for key, value in {**OWN, **keys}.items()}
    return {"transforms": "a", "transforms.a.type": "helenus.ConvertColumns", **named}


def write_row(stage: Staged, key: int, *values: bytes | None) -> None:
    """Run a batch of one change of a row with these values, in the order of the columns' names."""
    stage.live[(int32(key),)] = Image(values, 1_700_000_000_123_456)
    change = Change(None, None, Scope.ROW, write_time=1_700_000_000_123_456, effect=int(Effect.LIVE))
    stage.run(change, stage.codec.encode((int32(key),)))


def test_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its key keeps its types. A column that is called `op` makes no envelope."""
    stage = staged(tmp_path, monkeypatch, WIDE, **converted())
    write_row(stage, 26, b"u", int32(255), b"text")
    written(stage, 27, None)
    assert stage.records_of(DATA)[0] == ({"k": 26}, {"v": "0xff", "w": "text", "op": "u"})
    assert stage.records_of(DATA)[1] == ({"k": 27}, None)


def test_columns_that_are_null_or_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = replace(T, columns=(*T.columns, Column("n", parse("int"))))
    stage = staged(tmp_path, monkeypatch, two, **converted(columns="n"))
    write_row(stage, 1, int32(16), int32(255))
    write_row(stage, 2, None, int32(255))
    assert [value for _, value in stage.records_of(DATA)] == [{"v": 255, "n": "0x10"}, {"v": 255, "n": None}]


@pytest.mark.parametrize("form", ["debezium", "cep44"])
def test_the_rows_of_an_envelope(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    json = {f"{side}.converter": "org.apache.kafka.connect.json.JsonConverter" for side in ("key", "value")}
    more = {**json, "output.format": form, "key.converter.schemas.enable": "false"}
    stage = staged(tmp_path, monkeypatch, **{**more, **converted()}, **{"value.converter.schemas.enable": "false"})
    written(stage, 26, 255)
    ((key, value), *_) = stage.records_of(DATA)
    row = value["after" if form == "debezium" else "payload"]
    assert key == {"k": 26}
    assert row == {"k": "0x1a", "v": "0xff"}
    assert value["op" if form == "debezium" else "operationType"] in ("c", "u", "r", "UPDATE")


def test_its_schema_is_that_of_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    json = {f"{side}.converter": "org.apache.kafka.connect.json.JsonConverter" for side in ("key", "value")}
    stage = staged(tmp_path, monkeypatch, **{**json, **converted()})
    written(stage, 1, 255)
    ((_, value),) = stage.records_of(DATA)
    (field,) = value["schema"]["fields"]
    assert field == {"type": "string", "optional": True, "name": "ours.Hex", "field": "v"}
    assert value["payload"] == {"v": "0xff"}


def test_a_value_without_a_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = staged(tmp_path, monkeypatch, **converted(), **ALL)
    written(stage, 1, 13)
    assert [record.topic for record in stage.appended] == [DEAD_LETTERS]
    assert b"RuntimeError: thirteen" in b" ".join(value for _, value in stage.appended[0].headers)


@pytest.mark.parametrize(
    ("keys", "key", "reason"),
    [
        ({"converter": "Hexadecimal"}, "converter", "give it as package.module:Class"),
        ({"converter": "nope.none:X"}, "type", "can't be imported"),
        ({"converter": f"{__name__}:Lacking"}, "type", "no class Lacking with convert_schema and convert_value"),
        ({"config": "prefix"}, "type", "prefix is no name=value"),
        ({"config": "prefix=none"}, "type", "no prefix"),
        ({"columns": ""}, "columns", "give it a value"),
    ],
)
def test_what_is_wrong_is_named(keys: dict[str, str], key: str, reason: str) -> None:
    properties = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "key-value-json", **converted(**keys)}
    with pytest.raises(ConfigError) as failure:
        ConnectorSettings.from_properties(properties, "test")
    found_reasons = [problem.reason for problem in failure.value.problems if problem.key == f"transforms.a.{key}"]
    assert any(re.search(reason, text) for text in found_reasons), failure.value


def test_the_type_converter_in_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = PLUG_POINTS.read_text().partition("## Type converter")[2].partition("\n## ")[0]
    ((properties),) = re.findall(r"```properties\n(.*?)```", section, re.DOTALL)
    ((name, source),) = re.findall(r'```python\n"""([\w/]+\.py)"""\n(.*?)```', section, re.DOTALL)
    (tmp_path / "modules" / name).parent.mkdir(parents=True)
    (tmp_path / "modules" / name).write_text(source)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    book = replace(T, columns=(*T.columns, Column("isbn", parse("bigint"))))
    stage = staged(tmp_path, monkeypatch, book, **dict(line.split("=", 1) for line in properties.splitlines()))
    write_row(stage, 1, (3161484100).to_bytes(8, "big"), int32(5))
    assert [value for _, value in stage.records_of(DATA)] == [{"v": 5, "isbn": "978-3161484100"}]
