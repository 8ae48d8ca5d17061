"""The index of the keys that live on a data topic, and the calendar, over a dict as store."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.state.keys._key_index import KeyIndex, KeyReport
from helenus_connector.state.store.calendar import Calendar
from helenus_connector.state.store.keyed_store import KeyedStore
from helenus_connector.state.store.pages import Pages
from helenus_connector.testing.store import DictStore

DAY_S = 86_400


def digest(values: Mapping[bytes, bytes]) -> str:
    """Return a digest of all keys and values."""
    return hashlib.md5(repr(sorted(values.items())).encode()).hexdigest()


def within(name: bytes, bounds: bytes) -> bool:
    """Bounds are the first and the last key of a range."""
    return bounds[:2] <= name[1:] <= bounds[2:]


def name(group: int, key: int) -> tuple[bytes, bytes]:
    return bytes([group]), bytes([group]) + key.to_bytes(2, "big")


def encode_offset(offset: int) -> bytes:
    return offset.to_bytes(16, "big")


def index_reports(store: KeyedStore, reports: Sequence[KeyReport], now: float, max_requests: int = 1000) -> KeyIndex:
    index = KeyIndex(store, now, within, max_requests)
    index.take(reports)
    return index


@given(st.lists(st.tuples(st.integers(0, 3 * DAY_S), st.integers(0, 255)), max_size=600), st.data())
def test_what_is_due_comes_once_and_in_time(items: list[tuple[int, int]], data: st.DataObject) -> None:
    store = DictStore()
    remaining = sorted((when, bytes([item])) for when, item in items)
    now = 0
    while items or remaining:
        batch, items = items[:97], items[97:]
        calendar = Calendar(store)
        by_time: dict[int, list[bytes]] = {}
        for when, item in batch:
            by_time.setdefault(when, []).append(bytes([item]))
        calendar.add(by_time)
        due_items = calendar.take_due(now, data.draw(st.integers(1, 300)))
        for due_item in due_items:
            position = next(i for i, (when, item) in enumerate(remaining) if item == due_item and when <= now)
            del remaining[position]
        calendar.save()
        assert Calendar(store).count_waiting() == len(remaining) - len(items)
        if not items:
            next_due = Calendar(store).next_due()
            assert next_due == (remaining[0][0] if remaining else None)
            now = max(now, next_due or 0)
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
    requested_keys: set[bytes] = set()
    now, offset = 0, 0
    if bulk:
        reports = [KeyReport(*name(0, key), encode_offset(key), True) for key in range(250, 900)]
        live.update({report.name: None for report in reports})
        index_reports(store, reports, 0)
        offset = 1000
    for seconds, max_requests, items, answers in steps:
        now += seconds
        reports = []
        if answers:
            for requested_key in sorted(requested_keys):
                offset += 1
                reports.append(KeyReport(requested_key[:1], requested_key, encode_offset(offset), False))
                live.pop(requested_key, None)
                last.pop(requested_key, None)
            owed -= requested_keys
            requested_keys.clear()
        for item in items:
            offset += 1
            if item[0] == "record":
                _, (g, k), lives, ttl = item
                group, key = name(g, k)
                expires = None if ttl is None else now + ttl
                reports.append(KeyReport(group, key, encode_offset(offset), lives, expires))
                owed.discard(key)
                requested_keys.discard(key)
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
            reports.append(KeyReport(group, group, encode_offset(offset), False, None, scope, bounds))
            owed |= covered
        owed |= {key for key, expires in live.items() if expires is not None and expires <= now}
        index = index_reports(store, reports, now, max_requests)
        assert index.requested_keys.keys() <= owed
        requested_keys |= index.requested_keys.keys()
        for _ in range(20):  # what is due at once is done in further batches of the same time
            due_at = index.next_due()
            if due_at is None or due_at > now:
                break
            index = index_reports(store, (), now, 500)
            assert index.requested_keys.keys() <= owed
            requested_keys |= index.requested_keys.keys()
        assert owed <= requested_keys
    now += 2 * DAY_S
    reports = [KeyReport(key[:1], key, encode_offset(offset + 1 + i), False) for i, key in enumerate(sorted(live))]
    index_reports(store, reports, now)
    for _ in range(50):
        index = index_reports(store, (), now)
        assert not index.requested_keys
        if index.next_due() is None:
            break
        now += DAY_S
    assert not {key for key in store.values if key[:1] == b"g" and store.values[key][1:5] == bytes(4)}


def test_what_was_asked_is_asked_again_after_longer_and_longer() -> None:
    store = DictStore()
    group, key = name(0, 1)
    index_reports(store, [KeyReport(group, key, encode_offset(0), True, 10)], 0)
    times = []
    now = 0.0
    for _ in range(4):
        due_at = KeyIndex(store, now, within).next_due()
        assert due_at is not None
        now = due_at
        if index_reports(store, (), now).requested_keys:
            times.append(now)
    assert times == [10, 70, 190, 430]


def test_a_time_that_one_column_outlives_is_not_forgotten() -> None:
    """A read does not show when a row without columns ends: its first event said so, and no record after it does."""
    store = DictStore()
    group, key = name(0, 1)
    index_reports(store, [KeyReport(group, key, encode_offset(0), True, 50)], 0)
    index_reports(store, [KeyReport(group, key, encode_offset(1), True, 20)], 1)
    assert index_reports(store, (), 20).requested_keys
    index_reports(store, [KeyReport(group, key, encode_offset(2), True)], 21)
    assert KeyIndex(store, 21, within).next_due() is not None
    assert not index_reports(store, (), 49).requested_keys
    assert index_reports(store, (), 50).requested_keys


def test_nothing_is_requested_before_all_records_of_before_are_known() -> None:
    """An index that is learned anew: the null of an expired key, and of a deleted one, comes later in the topic."""
    store = DictStore()
    expired, deleted, alive = name(0, 1), name(1, 2), name(1, 3)
    marker = KeyReport(deleted[0], deleted[0], encode_offset(3), scope="partition")
    records = [KeyReport(*key, encode_offset(offset), True, None) for offset, key in enumerate((deleted, alive))]
    index = KeyIndex(store, 100, within)
    index.take([*records, KeyReport(*expired, encode_offset(2), True, 50), marker], is_behind=True)
    assert not index.requested_keys
    assert index.counts.pending_markers == 1
    nulls = [KeyReport(*key, encode_offset(offset)) for offset, key in enumerate((expired, deleted), 4)]
    index = index_reports(store, nulls, 110)
    assert index.requested_keys.keys() == {alive[1]}, "what has no null by then"
    assert not index_reports(store, (), 111).requested_keys


def test_markers_that_wait_for_records_are_not_kept_without_end() -> None:
    store = DictStore()
    group, key = name(0, 1)
    index_reports(store, [KeyReport(group, key, encode_offset(0), True)], 0)
    reports = []
    for number in range(10_001):
        other = KeyReport(b"\1", b"\1", encode_offset(3 * number + 1), True)
        reports += [other, other._replace(offset=encode_offset(3 * number + 2), is_live=False, scope="partition")]
        reports.append(other._replace(offset=encode_offset(3 * number + 3), is_live=False))
    index = KeyIndex(store, 1, within)
    index.take(reports, is_behind=True)
    assert index.counts.pending_markers == 0
    index = KeyIndex(store, 1, within)
    index.take([KeyReport(b"\2", b"\2", encode_offset(30_004), scope="partition")], is_behind=True)
    assert index.counts.pending_markers == 0, "nothing is to be requested for it"
    index = KeyIndex(store, 2, within)
    index.take([KeyReport(group, group, encode_offset(30_005), scope="partition")], is_behind=True)
    assert index.counts.pending_markers == 1, "one whose partition has keys"
    assert not index.requested_keys
    assert index_reports(store, (), 3).requested_keys.keys() == {key}


def test_pages_of_version_1_are_read() -> None:
    """Never change these bytes: they lie in checkpoints."""
    store = DictStore()
    group, key = name(0, 1)
    page = (
        "0100000000" + "00000024" + encode_offset(7).hex() + "000000000000000a" + "000000000000000a" + "00" + key.hex()
    )
    store.values[b"g" + group] = bytes.fromhex(page)
    index = index_reports(store, [KeyReport(group, group, encode_offset(8), scope="partition")], 5)
    assert index.requested_keys == {key: group}


def test_stored_keys_stay_byte_for_byte() -> None:
    """Never change this digest: a key lies on the page of its group that an earlier version gave it."""
    below = DictStore()
    for start in range(0, 3_000, 150):
        keys = [name(n % 3 // 2, n) for n in range(start, start + 200)]
        reports = [KeyReport(group, key, encode_offset(start), True, start + 500) for group, key in keys]
        reports += [KeyReport(group, key, encode_offset(start), False) for group, key in keys[::7]]
        if start == 1_500:
            reports.append(KeyReport(b"", b"", encode_offset(1_600), scope="table"))
        store = Pages(below)
        index_reports(store, reports, start, max_requests=100)
        store.flush()
    store = Pages(below)
    index_reports(
        store, [KeyReport(bytes(1), bytes(1), encode_offset(3_000), scope="partition")], 3_000, max_requests=100
    )
    store.flush()
    assert digest(below.values) == "17dadb671f499735f6c4765aefc60579"


def test_a_row_that_came_after_the_marker_is_not_asked() -> None:
    store = DictStore()
    rows = [KeyReport(*name(0, key), encode_offset(key), True) for key in range(500)]
    marker = KeyReport(bytes([0]), bytes([0]), encode_offset(500), scope="partition")
    rewritten = [KeyReport(*name(0, key), encode_offset(501 + key), True) for key in range(100)]
    index = index_reports(store, [*rows, marker, *rewritten], 0, max_requests=50)
    requested_keys = set(index.requested_keys)
    while index.next_due() == 0:
        index = index_reports(store, (), 0, max_requests=50)
        requested_keys |= set(index.requested_keys)
    assert requested_keys == {row.name for row in rows[100:]}


def test_a_row_that_came_after_two_truncations_is_not_asked() -> None:
    """The second one finds what is known of it by then, too, not what the store has."""
    store = DictStore()
    rows = [KeyReport(*name(key, 0), encode_offset(key), True) for key in range(10)]
    index_reports(store, rows, 0)
    markers = [KeyReport(b"", b"", encode_offset(offset), scope="table") for offset in (100, 101)]
    index = index_reports(store, [*markers, rows[3]._replace(offset=encode_offset(102))], 0)
    assert index.requested_keys.keys() == {row.name for row in rows if row is not rows[3]}


def test_a_row_that_came_again_while_a_marker_waits_is_not_asked() -> None:
    store = DictStore()
    rows = [KeyReport(*name(0, key), encode_offset(key), True) for key in range(500)]
    index_reports(store, rows, 0)
    index_reports(store, [KeyReport(bytes([0]), bytes([0]), encode_offset(500), scope="partition")], 0, max_requests=0)
    index_reports(store, [row._replace(offset=encode_offset(501 + n)) for n, row in enumerate(rows[100:])], 0, 0)
    index = index_reports(store, (), 0)
    assert index.requested_keys.keys() == {row.name for row in rows[:100]}


def test_a_row_that_comes_again_is_not_written_again() -> None:
    """Nothing is new of it but its offset, and a marker that comes later is after that, too."""
    store = DictStore()
    rows = [KeyReport(*name(key % 3, key), encode_offset(key), True) for key in range(900)]
    index_reports(store, rows, 0)
    written = dict(store.values)
    repeated = [row._replace(offset=encode_offset(1000 + n)) for n, row in enumerate(rows)]
    index_reports(store, repeated, 0)
    assert store.values == written
    marker = KeyReport(bytes([0]), bytes([0]), encode_offset(5000), scope="partition")
    index = index_reports(
        store, [*repeated[:30], marker, *(row._replace(offset=encode_offset(6000)) for row in rows[:6])], 0
    )
    assert index.requested_keys.keys() == {row.name for row in rows[6:] if row.group == bytes([0])}


def test_a_group_of_many_keys_is_spread_over_pages() -> None:
    store = DictStore()
    for start in range(0, 20_000, 1000):
        index_reports(
            store, [KeyReport(*name(0, key), encode_offset(key), True) for key in range(start, start + 1000)], 0
        )
    assert max(map(len, store.values.values())) < 30_000
    index = index_reports(store, [KeyReport(b"", b"", encode_offset(30_000), scope="table")], 0, max_requests=100_000)
    assert len(index.requested_keys) == 20_000
