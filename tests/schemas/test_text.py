"""Text forms of scalars, against Python's own where it has one."""

import datetime
import ipaddress
import math
import struct
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helenus_schemas.codec import _from_avro as from_avro
from helenus_schemas.codec import avro_long, to_avro
from helenus_schemas.codec import to_json as jsonform
from helenus_schemas.cql.text import _DIRECT_BYTES, _varint_decimal, as_double, as_text
from helenus_schemas.cql.types import CqlType

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
def test_years_beyond_pythons_range(millis: int, text: str) -> None:
    assert form("timestamp", millis.to_bytes(8, "big", signed=True)) == text


@given(st.floats(width=32))
def test_floats_read_back(value: float) -> None:
    data = struct.pack(">f", value)
    read = float(form("float", data))
    assert read != read if value != value else struct.pack(">f", read) == data


@pytest.mark.parametrize(
    ("bits", "expected"),
    [(1, "1e-45"), (3, "4e-45"), (21, "3e-44"), (0x80000001, "-1e-45"), (0x7FFFFF, "1.1754942e-38")],
)
def test_the_smallest_floats_have_the_fewest_digits_that_read_back(bits: int, expected: str) -> None:
    assert form("float", bits.to_bytes(4, "big")) == expected


@given(st.floats(0, 2.0**-120, width=32))
def test_small_floats_are_in_the_fewest_digits(value: float) -> None:
    data = struct.pack(">f", value)
    fewest = next(t for t in (f"{value:.{digits}g}" for digits in range(1, 10)) if struct.pack(">f", float(t)) == data)
    assert float(form("float", data)) == float(fewest)


@given(st.binary(min_size=_DIRECT_BYTES + 1, max_size=4 * _DIRECT_BYTES))
@example(b"\x80" + bytes(600))
@example(b"\xff" * 600)
@example(bytes(600))
def test_long_numbers_are_put_together_as_python_does_it(data: bytes) -> None:
    expected = Decimal(int.from_bytes(data, "big", signed=True))
    assert _varint_decimal(data).as_tuple() == expected.as_tuple()
    assert form("varint", data) == f"{expected:f}"
    sign, digits, _ = expected.as_tuple()
    assert form("decimal", struct.pack(">i", 7) + data) == str(Decimal((sign, digits, -7)))


@pytest.mark.parametrize("first", [b"\x7f", b"\x80"])
@pytest.mark.parametrize("size", [1 << 16, pytest.param(1 << 20, marks=pytest.mark.long)])
def test_a_number_of_many_bytes_is_shown(first: bytes, size: int) -> None:
    """A megabyte took minutes."""
    data = first + b"\x7f" * size
    value = int.from_bytes(data, "big", signed=True)
    text, negative = form("varint", data), value < 0
    assert (text[0] == "-", int(text[-9:])) == (negative, abs(value) % 10**9)
    digits = text.lstrip("-")
    near = float(f"0.{digits[:20]}")
    assert as_double(struct.pack(">i", len(digits)) + data) == pytest.approx(-near if negative else near)


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_decimals(value: object) -> None:
    assert isinstance(value, Decimal)
    sign, digits, exponent = value.as_tuple()
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    raw = struct.pack(">i", -int(exponent)) + unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
    assert Decimal(form("decimal", raw)) == value


@pytest.mark.parametrize(("name", "code"), [("float", ">f"), ("double", ">d")])
def test_floats_of_both_widths_are_spelled_alike(name: str, code: str) -> None:
    texts = [form(name, struct.pack(code, value)) for value in (100, 1e10, 1e20, math.nan, math.inf, -math.inf)]
    assert texts == ["100.0", "10000000000.0", "1e+20", "NaN", "Infinity", "-Infinity"]


@pytest.mark.parametrize("last", ["01020304", "00000000", "0000ffff", "ffff0001"])
def test_an_ipv4_address_in_ipv6_is_spelled_alike_by_every_python(monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    """A key has one form, whichever Python its writer runs on."""
    data = bytes(10) + b"\xff\xff" + bytes.fromhex(last)
    spelled = f"::ffff:{int(last[:4], 16):x}:{int(last[4:], 16):x}"
    monkeypatch.setattr(ipaddress.IPv6Address, "__str__", lambda self: f"::ffff:{self.ipv4_mapped}")  # as 3.13 has it
    t = CqlType("inet")
    assert form("inet", data) == spelled
    assert jsonform.encoder(t)(data) == f'"{spelled}"'
    assert to_avro.encoder(t)(data) == avro_long.long_bytes(len(spelled)) + spelled.encode()
    assert from_avro.decoder(t)(to_avro.encoder(t)(data), 0)[0] == data


def test_small_things() -> None:
    assert form("boolean", b"\1") == "true"
    assert form("blob", b"\0\xff") == "0x00ff"
    assert form("time", (3_723_000_000_004).to_bytes(8, "big")) == "01:02:03.000000004"
    assert form("float", struct.pack(">f", 0.1)) == "0.1"
    assert form("float", struct.pack(">f", -0.0)) == "-0.0", "-0 would be an integer, without sign"
    assert form("varint", b"\x11" * 5000).isdigit(), "Python by itself shows 4300 digits"
    assert as_text(CqlType("list", (CqlType("int"),))) is None
