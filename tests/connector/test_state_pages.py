"""Keys on pages, over a dict as the store below."""

from __future__ import annotations

from pathlib import Path

import pytest
import twice
from connector.test_state_index import DictStore, digest
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.state.store import linear_hashing, packing, pages
from helenus_connector.state.store.pages import Pages, entries, is_page

GOLDEN = {b"n": "01000000010000000000000002", b"\0\0\0\0": "01000000027231000000017600000002723200000000"}

PLAIN = twice.plain(Path(packing.__file__).with_name("packing.py"))
PLAIN_HASHING = twice.plain(Path(packing.__file__).with_name("linear_hashing.py"))
PLAIN_PAGES = twice.plain(Path(packing.__file__).with_name("pages.py"))
_keys = st.integers(0, 400).map(lambda n: b"r%d" % n)
_values = st.dictionaries(_keys, st.binary(max_size=5), max_size=120)
_steps = st.lists(st.tuples(st.sampled_from(["put", "remove", "get", "all", "batch"]), _values), max_size=25)


@given(_steps, st.sampled_from([0, 200, 1 << 20]))
def test_pages_are_a_store(steps: list[tuple[str, dict[bytes, bytes]]], max_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "_MAX_BYTES", max_bytes)
        below, wanted = DictStore(), dict[bytes, bytes]()
        store = Pages(below)
        for step, values in steps:
            match step:
                case "put":
                    store.put_many(values)
                    wanted.update(values)
                case "remove":
                    store.remove_many(values)
                    for key in values:
                        wanted.pop(key, None)
                case "get":
                    assert store.get_many([*values]) == [wanted.get(key) for key in values]
                case "all":
                    assert sorted(store.all_keys()) == sorted(wanted)
                case "batch":
                    store.flush()
                    store = Pages(below)
        store.flush()
        stored = {key: v for name, page in below.values.items() if is_page(name) for key, v in entries(page).items()}
        assert stored == wanted


def test_a_batch_reads_and_writes_each_page_once() -> None:
    below = DictStore()
    store = Pages(below)
    values = {b"r%d" % n: b"v" for n in range(8_000)}
    store.put_many(values)
    store.flush()
    assert 800 < len(below.values) < 1_200, "eight keys to a page"
    keys_per_read: list[int] = []

    class Counting(DictStore):
        def get_many(self, keys: object) -> list[bytes | None]:
            keys_per_read.append(len(keys))  # type: ignore[arg-type]
            return super().get_many(keys)  # type: ignore[arg-type]

    counting_store = Counting()
    counting_store.values = below.values
    store = Pages(counting_store)
    for start in range(0, 8_000, 1_000):
        batch_keys = list(values)[start : start + 1_000]
        store.get_many(batch_keys)
        store.put_many(dict.fromkeys(batch_keys, b"w"))
    store.flush()
    assert sum(keys_per_read) <= len(below.values)
    assert Pages(below).get_many([b"r1", b"r7999", b"x"]) == [b"w", b"w", None]


def test_bytes_of_version_1_are_read() -> None:
    """Never change these: a later version of Helenus finds them in checkpoints."""
    below = DictStore()
    below.values = {name: bytes.fromhex(value) for name, value in GOLDEN.items()}
    assert Pages(below).get_many([b"r1", b"r2"]) == [b"v", b""]
    made = DictStore()
    store = Pages(made)
    store.put_many({b"r1": b"v", b"r2": b""})
    store.flush()
    assert made.values == below.values


def test_stored_pages_stay_byte_for_byte() -> None:
    """Never change this digest: a key lies on the page that an earlier version gave it."""
    below = DictStore()
    for start in range(0, 3_000, 150):
        store = Pages(below)
        store.put_many({b"r%d" % n: b"%d" % (n * n) for n in range(start, start + 200)})
        store.remove_many([b"r%d" % n for n in range(start, start + 200, 7)])
        store.flush()
    assert digest(below.values) == "9f0fff87919a0324f909c5a9d801c81e"


def test_pages_of_a_newer_version_are_refused() -> None:
    for name in GOLDEN:
        below = DictStore()
        below.values = {key: bytes.fromhex(value) for key, value in GOLDEN.items()}
        below.values[name] = b"\2" + below.values[name][1:]
        with pytest.raises(ValueError, match="version 2"):
            Pages(below).get_many([b"r1"])


@given(st.lists(st.binary(max_size=300)), st.integers(0, 3), st.integers(0, 5))
def test_items_come_back_plain_and_compiled(items: list[bytes], offset: int, missing: int) -> None:
    data = bytes(offset) + packing.pack_items(items)
    assert PLAIN.pack_items(items) == data[offset:]
    assert packing.unpack_items(data, offset) == PLAIN.unpack_items(data, offset) == items
    if items and 0 < missing <= len(items[-1]):
        for unpack_items in (packing.unpack_items, PLAIN.unpack_items):
            with pytest.raises(ValueError, match="early"):
                unpack_items(data[:-missing], offset)


@pytest.mark.parametrize("size", [1, 1 << 31, (1 << 32) - 4, (1 << 32) - 1])
def test_sizes_beyond_the_end_are_refused(size: int) -> None:
    """As numbers of C some would be negative, and lead back into what was unpacked."""
    for unpack_items in (packing.unpack_items, PLAIN.unpack_items):
        with pytest.raises(ValueError, match="early"):
            unpack_items(bytes(4) + size.to_bytes(4, "big"))


@given(st.lists(st.binary(max_size=20)), st.integers(0, 70) | st.integers(1, 1 << 31))
def test_keys_have_their_pages_plain_and_compiled(keys: list[bytes], page_count: int) -> None:
    numbers = [linear_hashing.page_of_key(key, page_count) for key in keys]
    assert all(0 <= number < max(1, page_count) for number in numbers)
    for module in (linear_hashing, PLAIN_HASHING):
        assert module.pages_of_keys(keys, page_count) == numbers
        assert [module.page_of_key(key, page_count) for key in keys] == numbers


@given(_steps)
def test_pages_are_the_same_plain_and_compiled(steps: list[tuple[str, dict[bytes, bytes]]]) -> None:
    belows = DictStore(), DictStore()
    stores = Pages(belows[0]), PLAIN_PAGES.Pages(belows[1])
    for step, values in steps:
        for store in stores:
            if step == "put":
                store.put_many(values)
            elif step == "remove":
                store.remove_many(values)
    for store in stores:
        store.flush()
    assert belows[0].values == belows[1].values
    for name, page in belows[0].values.items():
        if is_page(name):
            assert entries(page) == PLAIN_PAGES.entries(page)
            with pytest.raises(ValueError, match=r"damaged|early"):
                entries(page + bytes(4))
