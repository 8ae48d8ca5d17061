"""Keys in DataStax's form, against Java: its addresses and numbers, its Avro, and Jackson's JSON."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemas.cqldata import SCALARS, cql_bytes
from schemas.java import Program
from schemas.test_roundtrip import table

from helenus_schemas.codec import to_json
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.types import CqlType, parse

SOURCE = Path(__file__).with_name("DataStaxKeys.java")
ADDRESSES = st.one_of(
    st.binary(min_size=4, max_size=4),
    st.binary(min_size=16, max_size=16),
    # Zeros, of which the canonical form leaves out a run; and IPv4 within IPv6, mapped and compatible.
    st.lists(st.sampled_from([0, 0, 1, 0xFFFF, 0x0DB8, 0x10]), min_size=8, max_size=8).map(
        lambda groups: struct.pack(">8H", *groups)
    ),
    st.binary(min_size=4, max_size=4).map(lambda data: bytes(10) + b"\xff\xff" + data),
    st.binary(min_size=4, max_size=4).map(lambda data: bytes(12) + data),
    st.binary(min_size=8, max_size=8).map(lambda data: b"\xfe\x80" + bytes(6) + data),
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)


def encoded(name: str) -> st.SearchStrategy[bytes]:
    """CQL bytes of a scalar type, whether a driver writes them so or not."""
    match name:
        case "inet":
            return ADDRESSES
        case "text":
            return TEXTS.map(str.encode)
        case "varint":
            return st.binary(min_size=1, max_size=40)
        case "decimal":
            return st.tuples(st.binary(min_size=4, max_size=4), st.binary(min_size=1, max_size=40)).map(b"".join)
        case "time":
            return st.binary(min_size=8, max_size=8)
    return SCALARS[name].map(lambda value: cql_bytes(CqlType(name), value))


VALUES = st.sampled_from([name for name in SCALARS if name != "duration"]).flatmap(
    lambda name: st.tuples(st.just(name), encoded(name))
)


@pytest.mark.integration
def test_keys_are_those_that_java_makes(tmp_path: Path) -> None:
    drawn: list[tuple[str, bytes]] = [("inet", bytes.fromhex("20010db8000000000000000000000001"))]

    @settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(VALUES)
    def collect(value: tuple[str, bytes]) -> None:
        drawn.append(value)

    collect()
    assert {name for name, _ in drawn} == SCALARS.keys() - {"duration"}
    lines = "".join(f"{name} {data.hex()}\n" for name, data in drawn)
    answers = Program(tmp_path, SOURCE, "avro").ask(lines).split("\n")
    assert answers.pop() == ""
    for (name, data), answer in zip(drawn, answers, strict=True):
        avro, text = answer.split(" ", 1)
        codec = KeyCodec(table(keys=(parse(name),)), "datastax")
        assert codec.encode((data,)).hex() == avro, (name, data)
        clustered = KeyCodec(table(clustering=(parse(name),)), "datastax").encode((bytes(4), data)).hex()
        # Decimals that Cassandra holds for one key have one form: without zeros at the end.
        if name != "decimal" or int.from_bytes(data[4:], "big", signed=True) % 10:
            assert clustered == f"0002{avro}", (name, data)
        ours = to_json.objects(["k"], [parse(name)], keys=1, datastax=True)((data,))
        if name in ("float", "double") and ours != text:
            # Before Java 19 some numbers are spelled longer than need be (JDK-4511638).
            assert json.loads(ours) == json.loads(text) or name == "float"
            assert len(text) > len(ours), (ours, text)
            continue
        assert ours == text, (name, data)


@given(st.sampled_from(["inet", "varint", "decimal", "tinyint", "smallint"]), st.data())
def test_an_event_of_theirs_gives_the_exact_key(name: str, data: st.DataObject) -> None:
    """What their agent wrote is read as the key that our agent writes, but for an IPv4 address within IPv6."""
    keyed_table = table(keys=(parse(name),))
    value = data.draw(SCALARS[name].map(lambda value: cql_bytes(CqlType(name), value)))
    if value.startswith(bytes(10) + b"\xff\xff") and len(value) == 16:
        value = value[12:]
    exact = KeyCodec(keyed_table)
    assert exact.current_key(KeyCodec(keyed_table, "datastax").encode((value,)), foreign=True) == exact.encode((value,))


def test_text_that_is_not_utf8_stays_apart() -> None:
    encode = to_json.objects(["k"], [parse("text")], keys=1, datastax=True)
    assert encode((b"a\x80",)) == '{"k":"a\\udc80"}' != encode((b"a\x81",))
