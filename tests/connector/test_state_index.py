"""The index of the keys that live on a data topic, and the calendar, over a dict as store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.state.keys._key_index import KeyIndex, KeyReport
from helenus_connector.state.store.calendar import Calendar
from helenus_connector.state.store.keyed_store import KeyedStore
from helenus_connector.state.store.pages import Pages

DAY_S = 86_400


class DictStore:
    """A store in memory."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.values.get(key) for key in keys]

    def put_many(self, values: Mapping[bytes, bytes]) -> None:
        self.values.update(values)

    def remove_many(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self.values.pop(key, None)

    def all_keys(self) -> Iterator[bytes]:
        yield from sorted(self.values)


def digest(values: Mapping[bytes, bytes]) -> str:
    """Return a digest of all keys and values."""
    return hashlib.md5(repr(sorted(values.items())).encode()).hexdigest()


def within(name: bytes, bounds: bytes) -> bool:
    """Bounds are the first and the last key of a range."""
    return bounds[:2] <= name[1:] <= bounds[2:]


def name(group: int, key: int) -> tuple[bytes, bytes]:
    return bytes([group]), bytes([group]) + key.to_bytes(2, "big")


def at(offset: int) -> bytes:
    return offset.to_bytes(16, "big")


def done(store: KeyedStore, said: Sequence[KeyReport], now: float, most: int = 1000) -> KeyIndex:
    index = KeyIndex(store, now, within, most)
    index.take(said)
    return index


@given(st.lists(st.tuples(st.integers(0, 3 * DAY_S), st.integers(0, 255)), max_size=600), st.data())
def test_what_is_due_comes_once_and_in_time(items: list[tuple[int, int]], data: st.DataObject) -> None:
    store = DictStore()
    left = sorted((when, bytes([item])) for when, item in items)
    now = 0
    while items or left:
        batch, items = items[:97], items[97:]
        calendar = Calendar(store)
        by_time: dict[int, list[bytes]] = {}
        for when, item in batch:
            by_time.setdefault(when, []).append(bytes([item]))
        calendar.add(by_time)
        found = calendar.take_due(now, data.draw(st.integers(1, 300)))
        for taken in found:
            place = next(i for i, (when, one) in enumerate(left) if one == taken and when <= now)
            del left[place]
        calendar.save()
        assert Calendar(store).count_waiting() == len(left) - len(items)
        if not items:
            rest = Calendar(store).next_due()
            assert rest == (left[0][0] if left else None)
            now = max(now, rest or 0)
    assert store.values.keys() <= {b"cr", b"cn"}


_keys = st.tuples(st.integers(0, 2), st.integers(0, 300))
_records = st.tuples(st.just("record"), _keys, st.booleans(), st.none() | st.integers(0, 200))
_deletes = st.one_of(
    st.tuples(st.just("partition"), st.integers(0, 2)),
    st.tuples(st.just("range"), st.integers(0, 2), st.integers(0, 300), st.integers(0, 300)),
    st.tuples(st.just("table")),
)
_steps = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.integers(1, 400),
        st.lists(_records | _records | _records | _deletes, max_size=30),
        st.booleans(),
    ),
    max_size=12,
)


@given(_steps, st.booleans())
def test_asks_just_what_is_deleted_or_expired(steps: list[tuple[int, int, list[tuple], bool]], bulk: bool) -> None:  # type: ignore[type-arg]
    """A model asks at once; the index may take several batches, and repeats what has no answer."""
    store = DictStore()
    live: dict[bytes, int | None] = {}
    last: dict[bytes, int] = {}  # when a live key ends at the latest, of all that its records said
    owed: set[bytes] = set()  # keys of which the model says that they are to be asked
    asked: set[bytes] = set()
    now, offset = 0, 0
    if bulk:
        said = [KeyReport(*name(0, key), at(key), True) for key in range(250, 900)]
        live.update({one.name: None for one in said})
        done(store, said, 0)
        offset = 1000
    for seconds, most, items, answers in steps:
        now += seconds
        said = []
        if answers:
            for one in sorted(asked):
                offset += 1
                said.append(KeyReport(one[:1], one, at(offset), False))
                live.pop(one, None)
                last.pop(one, None)
            owed -= asked
            asked.clear()
        for item in items:
            offset += 1
            if item[0] == "record":
                _, (g, k), lives, ttl = item
                group, key = name(g, k)
                expires = None if ttl is None else now + ttl
                said.append(KeyReport(group, key, at(offset), lives, expires))
                owed.discard(key)
                asked.discard(key)
                if lives:
                    last[key] = max(last.get(key, 0), expires or 0)
                    live[key] = expires or (last[key] if last[key] > now else None)
                else:
                    live.pop(key, None)
                    last.pop(key, None)
                continue
            scope, bounds, group = item[0], None, b""
            covered = set(live)
            if scope != "table":
                group = bytes([item[1]])
                covered = {key for key in live if key[:1] == group}
            if scope == "range":
                low, high = sorted(item[2:])
                bounds = low.to_bytes(2, "big") + high.to_bytes(2, "big")
                covered = {key for key in covered if within(key, bounds)}
            said.append(KeyReport(group, group, at(offset), False, None, scope, bounds))
            owed |= covered
        owed |= {key for key, expires in live.items() if expires is not None and expires <= now}
        index = done(store, said, now, most)
        assert index.requested_keys.keys() <= owed
        asked |= index.requested_keys.keys()
        for _ in range(20):  # what is due at once is done in further batches of the same time
            due = index.next_due()
            if due is None or due > now:
                break
            index = done(store, (), now, 500)
            assert index.requested_keys.keys() <= owed
            asked |= index.requested_keys.keys()
        assert owed <= asked
    now += 2 * DAY_S
    said = [KeyReport(key[:1], key, at(offset + 1 + i), False) for i, key in enumerate(sorted(live))]
    done(store, said, now)
    for _ in range(50):
        index = done(store, (), now)
        assert not index.requested_keys
        if index.next_due() is None:
            break
        now += DAY_S
    assert not {key for key in store.values if key[:1] == b"g" and store.values[key][1:5] == bytes(4)}


def test_what_was_asked_is_asked_again_after_longer_and_longer() -> None:
    store = DictStore()
    group, key = name(0, 1)
    done(store, [KeyReport(group, key, at(0), True, 10)], 0)
    times = []
    now = 0.0
    for _ in range(4):
        due = KeyIndex(store, now, within).next_due()
        assert due is not None
        now = due
        if done(store, (), now).requested_keys:
            times.append(now)
    assert times == [10, 70, 190, 430]


def test_a_time_that_one_column_outlives_is_not_forgotten() -> None:
    """A read does not show when a row without columns ends: its first event said so, and no record after it does."""
    store = DictStore()
    group, key = name(0, 1)
    done(store, [KeyReport(group, key, at(0), True, 50)], 0)
    done(store, [KeyReport(group, key, at(1), True, 20)], 1)
    assert done(store, (), 20).requested_keys
    done(store, [KeyReport(group, key, at(2), True)], 21)
    assert KeyIndex(store, 21, within).next_due() is not None
    assert not done(store, (), 49).requested_keys
    assert done(store, (), 50).requested_keys


def test_pages_of_version_1_are_read() -> None:
    """Never change these bytes: they lie in checkpoints."""
    store = DictStore()
    group, key = name(0, 1)
    page = "0100000000" + "00000024" + at(7).hex() + "000000000000000a" + "000000000000000a" + "00" + key.hex()
    store.values[b"g" + group] = bytes.fromhex(page)
    assert done(store, [KeyReport(group, group, at(8), scope="partition")], 5).requested_keys == {key: group}


def test_stored_keys_stay_byte_for_byte() -> None:
    """Never change this digest: a key lies on the page of its group that an earlier version gave it."""
    below = DictStore()
    for start in range(0, 3_000, 150):
        keys = [name(n % 3 // 2, n) for n in range(start, start + 200)]
        reports = [KeyReport(group, key, at(start), True, start + 500) for group, key in keys]
        reports += [KeyReport(group, key, at(start), False) for group, key in keys[::7]]
        if start == 1_500:
            reports.append(KeyReport(b"", b"", at(1_600), scope="table"))
        store = Pages(below)
        done(store, reports, start, most=100)
        store.flush()
    store = Pages(below)
    done(store, [KeyReport(bytes(1), bytes(1), at(3_000), scope="partition")], 3_000, most=100)
    store.flush()
    assert digest(below.values) == "17dadb671f499735f6c4765aefc60579"


def test_a_row_that_came_after_the_marker_is_not_asked() -> None:
    store = DictStore()
    rows = [KeyReport(*name(0, key), at(key), True) for key in range(500)]
    marker = KeyReport(bytes([0]), bytes([0]), at(500), scope="partition")
    again = [KeyReport(*name(0, key), at(501 + key), True) for key in range(100)]
    index = done(store, [*rows, marker, *again], 0, most=50)
    asked = set(index.requested_keys)
    while index.next_due() == 0:
        index = done(store, (), 0, most=50)
        asked |= set(index.requested_keys)
    assert asked == {one.name for one in rows[100:]}


def test_a_group_of_many_keys_is_spread_over_pages() -> None:
    store = DictStore()
    for start in range(0, 20_000, 1000):
        done(store, [KeyReport(*name(0, key), at(key), True) for key in range(start, start + 1000)], 0)
    assert max(map(len, store.values.values())) < 30_000
    index = done(store, [KeyReport(b"", b"", at(30_000), scope="table")], 0, most=100_000)
    assert len(index.requested_keys) == 20_000
