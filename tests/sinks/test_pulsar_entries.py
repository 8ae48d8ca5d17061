"""The messages of a batch, as they are and compiled: as protobuf makes and reads them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twice import compiled, plain

from helenus_connector.log._pulsar_entries import PulsarEntry
from helenus_sinks.pulsar import _entries as installed
from helenus_sinks.pulsar.wire import keyed, messages

SOURCE = Path(installed.__file__).parent / "_entries.py"
HEADERS: list[list[tuple[str, bytes]]] = [
    [],
    [("a", b"1"), ("b", b"\xff"), ("\u00e4" * 70, "\u00e4".encode()), ("a", b"2" * 300)],
]
PAIRS = st.tuples(st.none() | st.binary(max_size=300), st.none() | st.binary(max_size=300), st.sampled_from(HEADERS))


@pytest.fixture(scope="module", params=["plain", "compiled"])
def entries(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return plain(SOURCE) if request.param == "plain" else compiled(SOURCE, tmp_path_factory)


@pytest.mark.parametrize("text_key", [False, True])
@pytest.mark.parametrize("headers", HEADERS)
def test_a_message_is_as_protobuf_makes_it(
    entries: ModuleType, headers: list[tuple[str, bytes]], text_key: bool
) -> None:
    for key in (b"", b"k", bytes(range(128)) * 200, None):
        for value in (b"", b"v" * 127, b"v" * 128, b"v" * 70_000, None):
            made = entries.message(key, value, headers, text_key)
            size = int.from_bytes(made[:4], "big")
            read = messages.SingleMessageMetadata.FromString(made[4 : 4 + size])
            assert made[4 + size :] == (value or b"")
            fields = keyed(key, value, headers, text_key)
            assert read == messages.SingleMessageMetadata(payload_size=len(value or b""), **fields)
            of_headers = sum(len(name) + len(content) for name, content in headers)
            assert entries.size_of(key, value, headers) == len(key or b"") * 4 // 3 + len(value or b"") + of_headers


@given(records=st.lists(PAIRS, max_size=20))
def test_a_batch_is_its_messages(entries: ModuleType, records: list[Any]) -> None:
    one_by_one = [entries.message(*record, False) for record in records]
    assert entries.batch(records, False) == b"".join(one_by_one)
    entry = PulsarEntry(
        0, len(records), 0, messages.MessageMetadata(num_messages_in_batch=len(records)), b"".join(one_by_one)
    )
    read = [(metadata.null_partition_key, metadata.null_value, value) for metadata, value in entry.parse_messages()]
    assert read == [(key is None, value is None, value or b"") for key, value, _ in records]


def test_both_are_what_they_are_called(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert [plain(SOURCE).COMPILED, compiled(SOURCE, tmp_path_factory).COMPILED] == [False, True]
