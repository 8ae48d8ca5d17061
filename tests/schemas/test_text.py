"""Text forms of scalars, against Python's own where it has one."""

import datetime
import ipaddress
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helenus_schemas import from_avro, jsonform, transcode
from helenus_schemas.cql import CqlType
from helenus_schemas.text import as_text

EPOCH = datetime.datetime(1970, 1, 1)


def form(name: str, data: bytes) -> str:
    text = as_text(CqlType(name))
    assert text is not None
    return text(data)


@given(st.datetimes())
def test_timestamps(moment: datetime.datetime) -> None:
    millis = (moment - EPOCH) // datetime.timedelta(milliseconds=1)
    expected = (EPOCH + datetime.timedelta(milliseconds=millis)).isoformat(timespec="milliseconds")
    assert form("timestamp", millis.to_bytes(8, "big", signed=True)) == f"{expected}Z"


@pytest.mark.parametrize(
    ("millis", "text"),
    [
        (253_402_300_800_000, "+10000-01-01T00:00:00.000Z"),
        (-62_198_755_200_000, "-0001-01-01T00:00:00.000Z"),
        (-62_167_219_200_000, "0000-01-01T00:00:00.000Z"),
    ],
)
def test_years_that_python_has_not(millis: int, text: str) -> None:
    assert form("timestamp", millis.to_bytes(8, "big", signed=True)) == text


@given(st.floats(width=32))
def test_floats_read_back(value: float) -> None:
    data = struct.pack(">f", value)
    read = float(form("float", data))
    assert read != read if value != value else struct.pack(">f", read) == data


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_decimals(value: object) -> None:
    from decimal import Decimal

    assert isinstance(value, Decimal)
    sign, digits, exponent = value.as_tuple()
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    raw = struct.pack(">i", -int(exponent)) + unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
    assert Decimal(form("decimal", raw)) == value


@pytest.mark.parametrize(("name", "code"), [("float", ">f"), ("double", ">d")])
def test_floats_of_both_widths_are_spelled_alike(name: str, code: str) -> None:
    told = [form(name, struct.pack(code, value)) for value in (100, 1e10, 1e20, math.nan, math.inf, -math.inf)]
    assert told == ["100.0", "10000000000.0", "1e+20", "NaN", "Infinity", "-Infinity"]


@pytest.mark.parametrize("last", ["01020304", "00000000", "0000ffff", "ffff0001"])
def test_an_ipv4_address_in_ipv6_is_spelled_alike_by_every_python(monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    """A key has one form, whichever Python its writer runs on."""
    data = bytes(10) + b"\xff\xff" + bytes.fromhex(last)
    spelled = f"::ffff:{int(last[:4], 16):x}:{int(last[4:], 16):x}"
    monkeypatch.setattr(ipaddress.IPv6Address, "__str__", lambda self: f"::ffff:{self.ipv4_mapped}")  # as 3.13 has it
    t = CqlType("inet")
    assert form("inet", data) == spelled
    assert jsonform.encoder(t)(data) == f'"{spelled}"'
    assert transcode.encoder(t)(data) == transcode.long_bytes(len(spelled)) + spelled.encode()
    assert from_avro.decoder(t)(transcode.encoder(t)(data), 0)[0] == data


def test_small_things() -> None:
    assert form("boolean", b"\1") == "true"
    assert form("blob", b"\0\xff") == "0x00ff"
    assert form("time", (3_723_000_000_004).to_bytes(8, "big")) == "01:02:03.000000004"
    assert form("float", struct.pack(">f", 0.1)) == "0.1"
    assert form("float", struct.pack(">f", -0.0)) == "-0.0", "-0 would be an integer, without sign"
    assert form("varint", b"\x11" * 5000).isdigit(), "Python by itself tells 4300 digits"
    assert as_text(CqlType("list", (CqlType("int"),))) is None
