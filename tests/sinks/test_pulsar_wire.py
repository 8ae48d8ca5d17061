"""Frames of Pulsar's protocol, byte for byte as a real broker took them and a Java reader read what they hold."""

from __future__ import annotations

import struct

import pytest
from google_crc32c import value as crc32c

from helenus_sinks.log import DeclaredSchemas
from helenus_sinks.pulsar._entries import batch
from helenus_sinks.pulsar.connection import Access, Address
from helenus_sinks.pulsar.wire import command, commands, keyed, schema_of, send

METADATA = {"producer_name": "p", "publish_time": 1_700_000_000_000, "schema_version": bytes(8)}


def test_a_batch() -> None:
    """Two messages, the second a delete, with the numbers 7 and 8."""
    payload = batch([(b"\x02\xff", b"\0\x02x", ()), (b"\x04", None, ())], False)
    frame = send(3, 7, 2, {**METADATA, "num_messages_in_batch": 2}, payload)
    parts = [
        "00000057",  # the frame's size
        "0000000c" + "0806" + "3208" + "0803" + "1007" + "1802" + "3008",  # SEND by the producer 3, numbers 7 to 8
        "0e01" + "75af7c95",  # the checksum of all that follows
        "0000001c"
        + "0a0170"
        + "1007"
        + "1880d095ffbc31"
        + "5802"
        + "8201080000000000000000"
        + "c00108",  # of the batch
        "0000000a" + "120441763" + "83d" + "1803" + "3001" + "000278",  # a key in base64, 3 bytes
        "0000000c" + "1204424" + "13d3d" + "1800" + "3001" + "4801",  # a key, no value
    ]
    assert frame.hex() == "".join(parts)
    assert frame[22:26] == struct.pack(">I", crc32c(frame[26:]))


def test_the_metadata_of_a_message() -> None:
    assert keyed(b"text", b"", (), True) == {"partition_key": "text"}
    assert keyed(None, None, (), False) == {"null_partition_key": True, "null_value": True}
    metadata = keyed(b"k", b"", [("a", b"1"), ("b", b"\xff")], False)
    assert metadata["properties"] == [{"key": "a", "value": "1"}, {"key": "b", "value": "/w=="}]


def test_the_schema_of_keys_and_values() -> None:
    made = schema_of(DeclaredSchemas('{"k"}', '{"v"}', value_properties=(("a", "true"), ("b", "false"))))
    assert (made.name, made.type) == ("KeyValue", 15)
    assert made.schema_data == b'\0\0\0\5{"k"}\0\0\0\5{"v"}'
    assert {p.key: p.value for p in made.properties} == {
        "key.schema.name": "",
        "key.schema.properties": "{}",
        "key.schema.type": "AVRO",
        "kv.encoding.type": "SEPARATED",
        "value.schema.name": "",
        "value.schema.properties": '{"a":"true","b":"false"}',
        "value.schema.type": "AVRO",
    }


def test_frames_come_in_pieces() -> None:
    sent = command("pong") + command("error", request_id=5, error=3, message="no") + command("ping")
    buffer, received = bytearray(), []
    for i in range(len(sent)):
        buffer += sent[i : i + 1]
        received += list(commands(buffer))
    assert [name for name, _, _ in received] == ["pong", "error", "ping"]
    assert (received[1][1].request_id, received[1][1].error, received[1][1].message) == (5, 3, "no")
    assert not buffer


@pytest.mark.parametrize("other", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x03\x00\x02\x02\x50\0\0"])
def test_an_answer_that_is_not_pulsars_is_an_error(other: bytes) -> None:
    with pytest.raises(ValueError, match="not Pulsar"):
        list(commands(bytearray(other)))


def test_addresses() -> None:
    assert Address.parse("pulsar://a:1,b") == [Address("a", 1, False), Address("b", 6650, False)]
    assert Address.parse("pulsar+ssl://[::1]:9/") == [Address("::1", 9, True)]


def test_a_token_is_not_shown() -> None:
    assert "s3cret" not in repr(Access("s3cret"))
