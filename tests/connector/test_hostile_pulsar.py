"""What a Pulsar broker or a producer may send: frames, entries, batches, compressed blocks, schemas."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from typing import Any

import cramjam
import hostile
import pytest
from connector.test_pulsar_reader import batch, stored
from google_crc32c import value as crc32c
from hostile import NUMBERS, damaged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helenus_connector.log._pulsar_entries import PulsarEntry
from helenus_connector.log._pulsar_reader import events, records, texts
from helenus_connector.log.events import OffsetRange
from helenus_schemas.codec import blocks
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.log import DeclaredSchemas
from helenus_sinks.pulsar._entries import message
from helenus_sinks.pulsar.wire import KEY_VALUE, MAGIC, command, commands, messages, schema_of, texts_of

slow = settings(deadline=None, suppress_health_check=list(HealthCheck))
PLACE = OffsetRange("t", 0, 0, 1 << 100)
ID = messages.MessageIdData(ledgerId=7, entryId=1)
COMPRESS: dict[int, Callable[[bytes], bytes]] = {
    1: lambda data: bytes(cramjam.lz4.compress_block(data, store_size=False)),
    2: zlib.compress,
    3: lambda data: bytes(cramjam.zstd.compress(data)),
    4: lambda data: bytes(cramjam.snappy.compress_raw(data)),
}
READ = {1: blocks.lz4, 2: blocks.deflate, 3: blocks.zstd, 4: blocks.snappy}
PAYLOAD = b"".join(message(b"k%d" % n, b"v" * n, (("h", b"x"),), False) for n in range(5))
VALID = [
    batch(0, 3),
    stored(b"alone", None, partition_key="a2V5", partition_key_b64_encoded=True),
    batch(0, 3, is_checked=False),
    *(stored(squeeze(PAYLOAD), 5, compression=c, uncompressed_size=len(PAYLOAD)) for c, squeeze in COMPRESS.items()),
]


def single(**fields: Any) -> bytes:
    """The metadata of a message of a batch, after its size."""
    data: bytes = messages.SingleMessageMetadata(**fields).SerializeToString()
    return struct.pack(">I", len(data)) + data


def checked(data: bytes) -> bytes:
    """With the checksum that it has now: whoever writes an entry can make one."""
    return MAGIC + struct.pack(">I", crc32c(data[6:])) + data[6:] if data.startswith(MAGIC) else data


def read_all(data: bytes) -> None:
    try:
        entry = PulsarEntry.from_message(ID, data)
    except ValueError:
        return
    assert entry.count > 0
    for make in (events, records, texts):
        try:
            parsed_messages = make(PLACE, entry)
        except HelenusError as error:
            if error.kind is not Kind.BROKER_REFUSED or len(str(error)) > 1000:
                raise AssertionError from error
            continue
        assert sum(
            len(parsed_message.value() or b"") for parsed_message in parsed_messages
        ) <= entry.content_size + len(parsed_messages)


@slow
@given(data=st.data())
def test_entries(data: st.DataObject) -> None:
    damaged_entry = data.draw(damaged(VALID))
    for entry in (damaged_entry, checked(damaged_entry)):
        hostile.read(read_all, entry, ())


@slow
@given(
    size=st.sampled_from([n for n in NUMBERS if -(1 << 31) <= n < 1 << 31]),
    count=st.sampled_from([n for n in NUMBERS if -(1 << 31) <= n < 1 << 31]),
    claimed=st.sampled_from([n for n in NUMBERS if 0 <= n < 1 << 32]),
    codec=st.sampled_from([0, 1, 2, 3, 4, 5, -1]),
)
def test_claims_of_entries(size: int, count: int, claimed: int, codec: int) -> None:
    """A size of a value, a number of messages, a size of the content that are none of what is there."""
    payload = single(payload_size=size) + b"value" + single(payload_size=5) + b"value"
    squeezed = COMPRESS[codec](payload) if codec in COMPRESS else payload
    more = {"compression": codec, "uncompressed_size": claimed} if codec else {}
    for data in (stored(squeezed, count, **more), stored(squeezed, None, **more)):
        hostile.read(read_all, data, ())


@pytest.mark.parametrize("count", [1 << 20, (1 << 31) - 1])
@pytest.mark.parametrize("size", [-1, -6, -10, -(1 << 31)])
def test_a_negative_size_and_a_huge_count(size: int, count: int) -> None:
    """It would be read from where it is again and again, until there is no memory."""
    data = stored(single(payload_size=size), count)
    assert len(data) < 60
    hostile.read(read_all, data, ())
    with pytest.raises(HelenusError, match="7:1 cannot be read: it says that it has"):
        PulsarEntry.from_message(ID, data).parse_messages()
    with pytest.raises(HelenusError, match="7:1 cannot be read: a message of it has -"):
        PulsarEntry.from_message(ID, stored(single(payload_size=size) + bytes(9), 1)).parse_messages()


def test_a_message_that_cannot_be_read_says_how_to_go_on_after_it() -> None:
    """Else nothing of its table would come any more: no read gets past it, and Pulsar's offsets are no count."""
    with pytest.raises(HelenusError) as error:
        PulsarEntry.from_message(ID, stored(b"", None, encryption_algo="AES")).parse_messages()
    assert f"set the partition's offset to {(7 << 64) + (2 << 32)} over REST" in error.value.advice


def test_texts_that_are_no_utf_8() -> None:
    """Protobuf has bytes for them where it has text for others."""
    bad = (
        messages.SingleMessageMetadata(partition_key="AA", payload_size=1)
        .SerializeToString()
        .replace(b"AA", b"\xff\xfe")
    )
    header = messages.SingleMessageMetadata(properties=[{"key": "BB", "value": "CC"}]).SerializeToString()
    bad += header.replace(b"BB", b"\xffB").replace(b"CC", b"\xffC")
    entry = PulsarEntry.from_message(ID, stored(struct.pack(">I", len(bad)) + bad + b"v", 1))
    for make in (events, records, texts):
        (made,) = make(PLACE, entry)
        assert (made.key(), made.value()) == (b"\xff\xfe", b"v")
        assert list(made.headers()) == ([("\ufffdB", b"\xffC")] if make is records else [])


def test_a_value_ends_where_its_batch_does() -> None:
    whole = single(payload_size=5) + b"value"
    assert [value for _, value in PulsarEntry.from_message(ID, stored(whole, 1)).parse_messages()] == [b"value"]
    for cut in range(len(whole)):
        with pytest.raises(HelenusError, match="cannot be read"):
            PulsarEntry.from_message(ID, stored(whole[:cut], 1)).parse_messages()


@pytest.mark.parametrize("codec", COMPRESS)
def test_a_compressed_entry_has_as_many_bytes_as_it_says(codec: int) -> None:
    """What is longer by its own word would end in bytes that happened to be in the process's memory."""
    squeezed = COMPRESS[codec](b"value")
    made = PulsarEntry.from_message(ID, stored(squeezed, None, compression=codec, uncompressed_size=5))
    assert [value for _, value in made.parse_messages()] == [b"value"]
    assert made.content_size == made.size
    for size in (0, 4, 6, 100, 1000, 1 << 20, 64 << 20):
        with pytest.raises(HelenusError, match="7:1 cannot be read"):
            PulsarEntry.from_message(
                ID, stored(squeezed, None, compression=codec, uncompressed_size=size)
            ).parse_messages()


@pytest.mark.parametrize("codec", COMPRESS)
def test_a_large_entry_counts_as_what_it_comes_to(codec: int) -> None:
    """A task holds so many bytes at once: it may not be a thousand times as many."""
    content = bytes(8 << 20)
    made = PulsarEntry.from_message(
        ID, stored(COMPRESS[codec](content), None, compression=codec, uncompressed_size=len(content))
    )
    assert made.size < len(content) // 10
    assert made.content_size == len(content)


@slow
@given(codec=st.sampled_from(sorted(COMPRESS)), content=st.binary(max_size=300), data=st.data())
def test_compressed_blocks(codec: int, content: bytes, data: st.DataObject) -> None:
    block = data.draw(damaged(COMPRESS[codec](content)))
    size = data.draw(st.sampled_from([len(content), *NUMBERS]))

    def read() -> None:
        content_read = READ[codec](block, size)
        assert len(content_read) == size

    # One byte of Zstd may be 32 KiB, and is, if its frame says so.
    hostile.run(read, len(block) + (80 * len(block) if codec == 3 else 3 * len(block)), ValueError)


FRAMES = [
    command("connected", server_version="x", protocol_version=19, max_message_size=5 << 20),
    command("get_topics_response", request_id=3, topics=["a", "b"]),
    command("message", consumer_id=1, message_id={"ledgerId": 7, "entryId": 1}),
]


@slow
@given(data=st.data())
def test_frames(data: st.DataObject) -> None:
    stream = data.draw(damaged([b"".join(FRAMES), *FRAMES]))
    hostile.run(lambda: list(commands(bytearray(stream))), len(stream), ValueError)


@slow
@given(data=st.data())
def test_schemas_of_topics(data: st.DataObject) -> None:
    made = schema_of(DeclaredSchemas("JSON", '{"type":"string"}', '{"type":"int"}'))
    made.schema_data = data.draw(damaged(made.schema_data))
    made.type = data.draw(st.sampled_from([KEY_VALUE, 2, 4, -1]))
    hostile.run(lambda: texts_of(made), len(made.schema_data))


@pytest.mark.parametrize("kind", ["claim", "bomb", "count"])
def test_in_a_process_with_little_memory(kind: str) -> None:
    """Its limit is the system's: what no tracer of Python's sees counts too."""
    script = f"""
import resource, sys
sys.path.insert(0, "tests")
from connector import test_hostile_pulsar as hostile
limit = 300 << 20
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + limit, used + limit))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
hostile.take_{kind}()
print("done")
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (0, "done\n"), process.stderr


def take_claim() -> None:
    for codec, squeeze in COMPRESS.items():
        read_all(stored(squeeze(b"v"), None, compression=codec, uncompressed_size=(1 << 32) - 1))


def take_bomb() -> None:
    """A gigabyte of nothing, in what a broker takes by default."""
    bomb = zlib.compress(bytes(1 << 28))
    read_all(stored(bomb, None, compression=2, uncompressed_size=1 << 20))
    read_all(stored(bomb, None, compression=2, uncompressed_size=(1 << 32) - 1))


def take_count() -> None:
    read_all(stored(single(payload_size=-10), (1 << 31) - 1))
