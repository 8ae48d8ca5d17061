"""Serializers of a user's own: `value.converter=package.module:Class`, and what becomes of their errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from connector.staged import ALL, DATA, DEAD_LETTERS
from connector.test_transforms import PAGE, T, chain, staged, written

from helenus_connector.config.connector import ConnectorSettings, PulsarConnectorSettings
from helenus_connector.config.model import Model
from helenus_connector.connect_data.schema import ConnectSchema
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.properties import ConfigError

PLUG_POINTS = PAGE.with_name("plug-points.md")
JSON = {"key.converter": "org.apache.kafka.connect.json.JsonConverter", "key.converter.schemas.enable": "false"}


class Pairs:
    """A serializer as a user may write it: `k=1`; it fails for some numbers, each in its own way."""

    def __init__(self, properties: Mapping[str, str], is_key: bool) -> None:
        self._equals = properties.get("equals.sign", "=")
        self.is_key = is_key
        if self._equals == "none":
            raise ValueError("equals.sign: give one")

    def to_bytes(self, topic: str, schema: ConnectSchema | None, value: Any) -> bytes | None:
        if value is None:
            return None
        number = value.get("v")
        if number == 13:
            raise RuntimeError("thirteen")
        if number == 14:
            raise TimeoutError("the vault is away")
        if number == 15:
            raise HelenusError(Kind.CONFIG, "fifteen", topic)
        if number in (16, 17):
            return None if number == 16 else "text"  # type: ignore[return-value]
        assert schema is not None
        return ",".join(f"{field.name}{self._equals}{value[field.name]}" for field in schema.fields).encode()


OWN = f"{__name__}:Pairs"


@pytest.mark.parametrize(
    ("properties", "key", "value"),
    [
        ({**JSON, "value.converter": OWN}, b'{"k":1}', b"v=5"),
        ({"key.converter": OWN, "value.converter": OWN, "value.converter.equals.sign": ": "}, b"k=1", b"v: 5"),
        ({"key.converter": OWN, "value.converter": JSON["key.converter"]}, b"k=1", None),
        (
            {**JSON, "value.converter": OWN, **chain(("HoistField$Value", {"field": "row"}))},
            b'{"k":1}',
            b"row={'v': 5}",
        ),
    ],
)
def test_records_of_a_serializer(
    properties: dict[str, str], key: bytes, value: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        properties = {**properties, "value.converter.schemas.enable": "false"}
    stage = staged(tmp_path, monkeypatch, **properties)
    written(stage, 1, 5)
    if "transforms" not in properties:  # a delete too
        written(stage, 1, None)
        assert stage.appended[1].key == key
        assert stage.appended[1].value is None
    assert (stage.appended[0].key, stage.appended[0].value) == (key, value or b'{"v":5}')


def test_what_it_has_no_form_for_is_a_dead_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = staged(tmp_path, monkeypatch, **JSON, **{"value.converter": OWN}, **ALL)
    for key, number in ((1, 13), (2, 16), (3, 17), (4, 5)):
        written(stage, key, number)
    assert [record.value for record in stage.appended if record.topic == DATA] == [b"v=5"]
    letters = [b" ".join(v for _, v in record.headers) for record in stage.appended if record.topic == DEAD_LETTERS]
    for letter, reason in zip(
        letters, (b"RuntimeError: thirteen", b"returned NoneType for a dict", b"returned str"), strict=True
    ):
        assert reason in letter


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (13, Kind.POISON_EVENT, "RuntimeError: thirteen"),
        (14, Kind.REGISTRY_UNREACHABLE, "the vault is away"),
        (15, Kind.CONFIG, "fifteen"),
    ],
)
def test_its_errors(number: int, kind: Kind, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = staged(tmp_path, monkeypatch, **JSON, **{"value.converter": OWN})
    with pytest.raises(HelenusError, match=message) as failure:
        written(stage, 1, number)
    assert failure.value.kind is kind


BASE = {"name": "n", "keyspace": "ks", "table": "t", **JSON}


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"value.converter": "nope.none:X"}, "nope.none can't be imported"),
        ({"value.converter": "os:system"}, "os has no class system with to_bytes, as RecordConverter has them"),
        ({"value.converter": f"{__name__}:Lacking"}, "has no class Lacking"),
        ({"value.converter": OWN, "value.converter.equals.sign": "none"}, "equals.sign: give one"),
        ({"value.converter": "a b:C"}, "known are"),
    ],
)
def test_what_is_wrong_is_named(properties: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError) as failure:
        ConnectorSettings.from_properties({**BASE, **properties}, "test")
    assert any(reason in problem.reason for problem in failure.value.problems), failure.value


@pytest.mark.parametrize(
    "key", ["key.converter", "value.converter", "transforms.a.converter", "transforms.a.b.converter"]
)
def test_a_class_over_rest_has_to_be_allowed(key: str) -> None:
    """To import it runs code."""
    properties = {**BASE, "output.format": "key-value-json", key: f" {OWN}"}
    if key.startswith("transforms"):
        properties |= {"transforms": key.removeprefix("transforms.").removesuffix(".converter")}
        properties |= {key.replace("converter", "type"): "helenus.ConvertColumns"}
    with pytest.raises(ConfigError, match=r"plugin\.packages") as failure:
        Model(ConnectorSettings).read_settings(properties, "n")
    assert [problem.key for problem in failure.value.problems] == [key]
    assert Model(ConnectorSettings).foreign_classes(properties, properties) == []
    assert Model(ConnectorSettings, packages=(__name__,)).foreign_classes(properties, {}) == []


def test_it_needs_no_registry_and_no_pulsar() -> None:
    settings = ConnectorSettings.from_properties({**BASE, "value.converter": OWN}, "test")
    assert (settings.has_transforms, settings.is_avro) == (True, False)
    with pytest.raises(ConfigError, match="Pulsar"):
        PulsarConnectorSettings.from_properties({**BASE, "value.converter": OWN}, "test")


def test_the_serializer_in_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ((name, source),) = re.findall(r'```python\n"""(formats/\w+\.py)"""\n(.*?)```', PLUG_POINTS.read_text(), re.DOTALL)
    (tmp_path / "modules/formats").mkdir(parents=True)
    (tmp_path / "modules" / name).write_text(source)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    own = {"value.converter": "formats.csv:CsvConverter", "value.converter.separator": ";"}
    masked = chain(("InsertField$Value", {"static.field": "note", "static.value": "x"}))
    stage = staged(tmp_path, monkeypatch, T, **JSON, **own, **masked)
    written(stage, 1, 5)
    assert [(record.key, record.value) for record in stage.appended] == [(b'{"k":1}', b"5;x")]
    with pytest.raises(ConfigError, match="give one character"):
        ConnectorSettings.from_properties({**BASE, **own, "value.converter.separator": ";;"}, "test")


class Lacking:
    """No serializer."""
