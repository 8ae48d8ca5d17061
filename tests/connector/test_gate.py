"""What the gate makes of events that are of no row."""

from __future__ import annotations

import io
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest
from connector.gated import Gated

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.event import Event, Gap
from helenus_connector.interfaces.image import Image, TimedColumns
from helenus_connector.reread._key_read import KeyRead
from helenus_connector.unconfirmed.unconfirmed_key import UnconfirmedKey
from helenus_connector.unconfirmed.unproven_changes import pack_changes
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.event.change import Bound, Change, Effect, Scope, column_bit
from helenus_schemas.event.wire import encode

SETTINGS = ConnectorSettings.from_properties(
    {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json"}, "test"
)


def admit(path: Path, key: bytes | None, value: bytes | None) -> Any:
    gate = Gated(SETTINGS, None, path)  # type: ignore[arg-type]
    return gate.admit([Event("t", 1, 2, 3, key, value)], [], KeyCodec(INT))


def test_a_gap_counts_as_confirmed_and_is_passed_on(tmp_path: Path) -> None:
    gap = Change("0" * 32, "n", Scope.GAP, write_time=5)
    admitted = admit(tmp_path, None, encode(gap))
    assert (admitted.read, admitted.confirmed, admitted.key_reads, admitted.poison) == (1, 1, {}, [])
    assert admitted.gaps == [Gap(1, 2, "n", 5)]


@pytest.mark.parametrize(
    ("key", "value"), [(None, encode(Change("0" * 32, "n"))), (b"k", None), (None, None), (b"k", b"\0")]
)
def test_a_value_that_is_no_event_is_poison(tmp_path: Path, key: bytes | None, value: bytes | None) -> None:
    admitted = admit(tmp_path, key, value)
    assert (admitted.read, admitted.confirmed, admitted.key_reads) == (1, 0, {})
    assert len(admitted.poison) == 1


def test_an_error_of_the_host_is_no_poison(tmp_path: Path) -> None:
    """To blame the event would dead-letter a good one: the batch fails, and is repeated."""
    gate = Gated(SETTINGS, SimpleNamespace(factor=lambda: 1), tmp_path)  # type: ignore[arg-type]
    codec = KeyCodec(INT)
    event = Event("t", 1, 2, 3, codec.encode((bytes(4),)), encode(Change(DIGEST, NODE)))
    gate.admit([event], [], codec)
    for cache in gate.caches._caches.values():
        cache.close()
    with pytest.raises((ValueError, IndexError), match=r"mmap closed|Out of bounds"):  # plain, compiled
        gate.admit([event], [], codec)


INT = Table("ks", "t", uuid.uuid1(), (Column("k", parse("int"), "partition_key", 0),))


@pytest.mark.parametrize(("written", "sent", "counts"), [(99, 150, (1, 0)), (150, 99, (1, 0)), (101, 150, (0, 1))])
def test_a_key_of_a_recreated_table(tmp_path: Path, written: int, sent: int, counts: tuple[int, int]) -> None:
    """It can't be of the table, which was made at 100 s: outdated if it is older, poison if it is not."""
    gate = Gated(SETTINGS, SimpleNamespace(factor=lambda: 1), tmp_path)  # type: ignore[arg-type]
    event = Event("t", 1, 2, sent * 1000, b"no int", encode(Change(None, None, write_time=written * 10**6)))
    waits = UnconfirmedKey("t", 1, b"no int", 0, copies=2)
    admitted = gate.admit([event], [waits], KeyCodec(INT), made_at=100.0)
    assert (admitted.outdated, len(admitted.poison)) == counts
    assert (admitted.gone, admitted.key_reads) == ([waits], {})


def test_bounds_of_a_recreated_table(tmp_path: Path) -> None:
    """Its partition key is the same, its clustering columns are others: earlier bounds are outdated."""
    gate = Gated(SETTINGS, SimpleNamespace(factor=lambda: 1), tmp_path)  # type: ignore[arg-type]
    codec, old = KeyCodec(table("int", "bigint")), Bound(True, (bytes(4),))
    key = codec.encode((bytes(4), None))
    for written, bound in (
        (99, old),
        (101, old),
        (99, Bound(True, (bytes(8), bytes(8)))),
        (99, Bound(True, (bytes(8),))),
    ):
        change = Change("a" * 32, NODE, Scope.RANGE, write_time=written * 10**6, start=bound)
        waits = UnconfirmedKey("t", 1, key, Scope.RANGE, bounds=(bound, None))
        admitted = gate.admit([Event("t", 1, 2, 150_000, key, encode(change))], [waits], codec, made_at=100.0)
        counts = (admitted.outdated, len(admitted.poison), len(admitted.gone), len(admitted.key_reads))
        assert counts == ((0, 0, 0, 1) if bound.values == (bytes(8),) else (written < 100, written > 100, 1, 0))


def test_a_row_written_again_after_a_truncation_is_no_copy(tmp_path: Path) -> None:
    """A row written again with its former time has the same bytes: it is no copy of the truncated one."""
    who: Any = SimpleNamespace(
        factor=lambda: 1, is_partial=lambda: False, are_all_read=lambda: True, nodes=lambda key: set()
    )
    codec = KeyCodec(INT)
    insert = Event("t", 1, 2, 3, codec.encode((bytes(4),)), encode(Change(DIGEST, NODE, write_time=5)))
    truncate = Event("t", 1, 2, 3, b"", encode(Change("f" * 32, NODE, Scope.TABLE, write_time=9)))

    def batch(*events: Event) -> int:
        gate = Gated(SETTINGS, who, tmp_path)
        key_reads = gate.admit(events, [], codec).key_reads.values()
        for key_read in key_reads:
            key_read.read_at, key_read.after = time.time(), Image((), 5)
            gate.unproven(key_read)
            gate.mark(key_read)
        gate.save()
        gate.close()
        return len(key_reads)

    assert [batch(insert), batch(insert)] == [1, 0]
    assert [batch(truncate), batch(truncate)] == [1, 0]
    assert [batch(insert), batch(insert)] == [1, 0]
    assert [batch(insert, truncate._replace(value=encode(Change("e" * 32, NODE, Scope.TABLE)))), batch(insert)] == [
        1,
        1,
    ]


class Running:
    """A gate whose batches are read, and proven by what the row shows: `image`."""

    def __init__(self, path: Path, nodes: int = 1) -> None:
        ids = [str(uuid.UUID(int=n + 1)) for n in range(nodes)]
        self.nodes = ids
        who: Any = SimpleNamespace(
            factor=lambda: nodes, is_partial=lambda: False, are_all_read=lambda: True, nodes=lambda key: set(ids)
        )
        self.codec = KeyCodec(INT)
        self.gate = Gated(SETTINGS, who, path)
        self.key = self.codec.encode((bytes(4),))
        self.image: Image | None = Image((), 5)

    def event(self, position: int, node: int = 0, **more: Any) -> Event:
        change = Change(DIGEST, self.nodes[node], segment=7, position=position, **{"write_time": 5, **more})
        return Event("t", 1, position, 3, self.key, encode(change))

    def batch(self, *events: Event, due_keys: tuple[UnconfirmedKey, ...] = (), fails: bool = False) -> tuple[int, int]:
        """How many keys were read, and of how many Changes the image is not proven."""
        key_reads = self.gate.admit(events, due_keys, self.codec).key_reads.values()
        for key_read in key_reads:
            key_read.read_at, key_read.after = time.time(), self.image
            self.gate.unproven(key_read)
            if not fails:
                self.gate.mark(key_read)
        if not fails:
            self.gate.save()
        return len(key_reads), sum(len(key_read.proof.unproven) for key_read in key_reads)


def test_a_change_logged_again_is_a_new_write_and_one_sent_again_is_a_copy(tmp_path: Path) -> None:
    """A row that is written again with its own time, byte for byte: after its tombstone was purged, or to copy it."""
    running = Running(tmp_path)
    first, relogged = running.event(100), running.event(900)
    assert running.batch(first) == (1, 0)
    assert running.batch(first) == (0, 0), "sent again"
    assert running.batch(relogged) == (1, 0), "logged again"
    assert running.batch(first, relogged) == (0, 0), "sent again, both"
    # Once more it may be what a read of ours had repaired: the key waits, and is read a little later.
    for position, pause_s in ((901, 2.0), (902, 2.0)):
        admission = running.gate.admit(
            [running.event(100)._replace(offset=9), running.event(position)], [], running.codec
        )
        assert not admission.key_reads
        (waits,) = admission.waiting.values()
        assert (waits.pause_s, waits.copies) == (pause_s, 2 if position == 902 else 1)
        running.gate.save()


def test_a_truncation_that_is_sent_again_is_a_copy(tmp_path: Path) -> None:
    """To publish it takes a scan of the table; ranges are alike."""
    upto = Bound(True, (bytes(4),))
    for more in ({"scope": Scope.TABLE}, {"scope": Scope.RANGE, "start": None, "end": upto}):
        is_range = more["scope"] is Scope.RANGE
        running = Running(tmp_path / str(is_range))
        (tmp_path / str(is_range)).mkdir()
        running.codec = KeyCodec(table("int", "int") if is_range else INT)
        running.key = running.codec.encode((bytes(4), None)) if is_range else b""
        event = running.event(100, **more)
        assert running.batch(event)[0] == 1
        assert running.gate.admit([event], [], running.codec).key_reads == {}
        assert running.batch(running.event(900, **more))[0] == 1


def test_the_first_report_of_a_replica_and_the_same_sent_again_in_one_batch(tmp_path: Path) -> None:
    """Of a change that is published and that no read has confirmed: an agent that had lost its positions reports its
    log for the first time here, and once more, before the next batch. Neither is another write.
    """
    running = Running(tmp_path, nodes=2)
    running.image = None  # nothing proves it
    assert running.batch(running.event(100)) == (1, 1)
    late, relogged = running.event(300, node=1), running.event(500, node=1)
    assert running.batch(late, late, running.event(100), late) == (0, 0)
    assert running.batch(late, relogged, relogged)[0] == 1, "it is, where the log has it once more"


def test_an_event_sent_again_moves_no_position_back(tmp_path: Path) -> None:
    running = Running(tmp_path)
    other = running.codec.encode((bytes(3) + b"\1",))
    events = [running.event(200), *(running.event(p)._replace(key=other) for p in (210, 50, 60))]
    assert running.batch(*events) == (2, 0)
    assert running.batch(running.event(205)) == (0, 0), "sent before, as 210 was"


def test_what_a_node_sends_again_after_what_is_new_moves_no_position_back(tmp_path: Path) -> None:
    """An agent that has lost its positions sends its segments again, and a batch ends amid that."""
    running = Running(tmp_path, 2)
    older_key, first_key, last_key = (running.codec.encode((bytes(3) + bytes([n]),)) for n in range(3))
    assert running.batch(running.event(7, node=1)._replace(key=older_key)) == (1, 0)
    sent = [running.event(p)._replace(key=key) for p, key in ((200, first_key), (300, last_key), (100, older_key))]
    assert running.batch(*sent) == (2, 0), "of the third the other node's was published"
    assert running.batch(sent[1]) == (0, 0), "no other write: it was sent before"


def test_a_row_that_is_deleted_whole_stays_so_when_a_column_is_deleted_later(tmp_path: Path) -> None:
    """What was written before both shows up for a moment: the newer deletion does not hide it, the older one does."""
    running = Running(tmp_path)
    running.image = None

    def change(digest: str, time: int, effect: int) -> Event:
        second_change = Change(digest * 32, running.nodes[0], segment=7, position=time, write_time=time, effect=effect)
        return Event("t", 1, time, 3, running.key, encode(second_change))

    u, v = Column("u", parse("int")), Column("v", parse("int"))
    assert running.batch(change("a", 15, int(Effect.GONE))) == (1, 0)
    assert running.batch(change("b", 20, int(Effect.DELETES) | column_bit("v"))) == (1, 0)
    running.image = Image((b"", None), 12, [(12).to_bytes(8, "big"), None], TimedColumns.from_columns([u, v], []))
    assert running.batch(change("c", 12, int(Effect.LIVE) | column_bit("u"))) == (1, 1)


@pytest.mark.parametrize(("kind", "silent"), [("set<int>", True), ("int", False)])
def test_the_newest_of_many_cells_proves_nothing_of_the_others(kind: str, silent: bool) -> None:
    timed = TimedColumns.from_columns([Column("v", parse(kind))], [])
    key_read = KeyRead("t", 0, b"", (), Scope.PARTITION)
    key_read.note_live_row(Image((b"",), 20, [(20).to_bytes(8, "big")], timed))
    assert (key_read.oldest, key_read.has_untimed_rows) == (20, silent)


def test_events_of_a_failed_batch_are_not_taken_for_logged_again(tmp_path: Path) -> None:
    running = Running(tmp_path)
    assert running.batch(running.event(100)) == (1, 0)
    assert running.batch(running.event(900), fails=True) == (1, 0)
    assert running.batch(running.event(900)) == (1, 0)
    assert running.batch(running.event(900)) == (0, 0)


def test_copies_of_other_nodes_are_copies_wherever_they_are_in_their_logs(tmp_path: Path) -> None:
    running = Running(tmp_path, nodes=3)
    assert running.batch(running.event(100, node=0), running.event(50_000, node=1)) == (1, 0)
    assert running.batch(running.event(7, node=2)) == (0, 0)


def test_a_late_report_counts_where_only_age_had_confirmed(tmp_path: Path) -> None:
    """Nothing spoke against it for long; the node that has it only now may show what the others did not."""
    running = Running(tmp_path, nodes=3)
    running.image = None
    reported = [running.event(100, node=0, effect=0), running.event(100, node=1, effect=0)]
    assert running.batch(*reported) == (1, 1)
    (awaited,) = running.gate.admit(reported, [], running.codec).awaited.values()
    waits = UnconfirmedKey(
        "t", 1, running.key, 0, pack_changes({n: a._replace(seen=0.0) for n, a in awaited.items()}), handed=60.0
    )
    assert running.batch(due_keys=(waits,)) == (1, 0)
    assert running.batch(running.event(100, node=0)) == (0, 0)
    late = running.event(4, node=2)
    for _ in range(2):  # also if the driver never hears of the first
        assert list(running.gate.admit([late], [], running.codec).waiting) == [waits.name]
        running.gate.save()


def test_a_row_removed_by_a_known_deletion_proves_nothing(tmp_path: Path) -> None:
    """The deletion was believed since the row was not there; a write before it comes, and the row shows up for now."""
    running = Running(tmp_path)
    running.image = None
    gone = running.event(100, write_time=9, effect=int(Effect.GONE))._replace(offset=1)
    assert running.batch(gone) == (1, 0)
    write = Change("f" * 32, running.nodes[0], segment=7, position=200, write_time=5, effect=LIVE | V)
    late = Event("t", 1, 200, 3, running.key, encode(write))
    assert running.batch(late) == (1, 0), "explained by the deletion"
    column = TimedColumns.from_columns([Column("v", parse("int"))], [])
    running.image = Image((b"",), 5, [(5).to_bytes(8, "big")], column)
    assert running.batch(late._replace(value=encode(write._replace(digest="e" * 32)))) == (1, 1)
    running.image = Image((b"",), 10, [(10).to_bytes(8, "big")], column)
    newer = write._replace(digest="d" * 32, write_time=10)
    assert running.batch(late._replace(value=encode(newer))) == (1, 0)


LIVE, DELETES = int(Effect.LIVE), int(Effect.DELETES)
V, W = column_bit("v"), column_bit("w")


@pytest.mark.parametrize(
    "later",
    [
        [{"effect": LIVE | DELETES | V | W, "write_time": 9}],
        [{"effect": DELETES | V, "write_time": 8}, {"effect": DELETES | W, "write_time": 9}],
        [{"effect": LIVE | V | W, "write_time": 9, "all_expired_at": 1}],
        [{"scope": Scope.TABLE, "write_time": 9}],
    ],
    ids=["a null among values", "one column after the other", "a cell that expired", "a truncation"],
)
def test_a_column_deleted_since_needs_no_tenfold_wait(tmp_path: Path, later: Any) -> None:
    """A column that a write has and the row has not: it is known what may have taken it away."""
    running = Running(tmp_path)
    timed = TimedColumns.from_columns([Column("v", parse("int")), Column("w", parse("int"))], [])
    running.image = Image((b"", b""), 9, [None, None], timed)
    write = running.event(100, effect=LIVE | V | W)
    digests = iter("abcdef")
    events = []
    for n, more in enumerate(later):
        change = Change(next(digests) * 32, running.nodes[0], segment=7, position=200 + n, **more)
        key = b"" if change.scope is Scope.TABLE else running.key
        events.append(Event("t", 1, 200 + n, 3, key, encode(change)))
    key_reads = running.gate.admit([write, *events], [], running.codec).key_reads.values()
    for key_read in key_reads:
        key_read.read_at, key_read.after = time.time(), running.image
        key_read.unconfirmed = UnconfirmedKey("t", 1, running.key, 0, handed=0.0)
        running.gate.unproven(key_read)
    (seconds_left,) = {key_read.proof.pause_s for key_read in key_reads if key_read.scope is Scope.ROW}
    assert seconds_left == SETTINGS.settle_min_age_ms / 1000, "the row is silent, and does not contradict"


@pytest.mark.parametrize(
    ("scope", "effect", "oldest", "proven"),
    [
        (Scope.RANGE, Effect.DELETES, None, False),  # it waits for a second look, and no longer
        (Scope.RANGE, Effect.DELETES, 4, False),
        (Scope.PARTITION, Effect.GONE, 6, True),
        (Scope.PARTITION, Effect.GONE, 4, False),
    ],
)
@pytest.mark.parametrize("static", [None, 3, 9])
def test_a_range_has_no_static_columns(
    tmp_path: Path, scope: Scope, effect: int, oldest: int | None, proven: bool, static: int | None
) -> None:
    """Those of its partition are older, and stay; those of a partition that was deleted are newer, or will go."""
    of_rows = Table(
        "ks",
        "t",
        uuid.UUID(int=1),
        (Column("k", parse("int"), "partition_key", 0), Column("c", parse("int"), "clustering", 0)),
        cdc=True,
    )
    running = Running(tmp_path)
    running.codec = KeyCodec(of_rows)
    key = running.codec.encode((bytes(4), None))
    times = [] if static is None else [static.to_bytes(8, "big")]
    timed = TimedColumns.from_columns([Column("s", parse("int"), "static")][: len(times)], [])
    running.image = Image((b"",), static, times, timed) if times else None
    change = Change(DIGEST, running.nodes[0], scope, segment=7, position=1, write_time=5, effect=int(effect))
    (key_read,) = running.gate.admit([Event("t", 1, 1, 3, key, encode(change))], [], running.codec).key_reads.values()
    key_read.read_at, key_read.after, key_read.oldest = time.time(), running.image, oldest
    key_read.unconfirmed = UnconfirmedKey("t", 1, key, scope, handed=0.0)
    is_stale = scope is Scope.PARTITION and static == 3
    assert bool(running.gate.unproven(key_read)) == (not proven or is_stale)
    if scope is Scope.RANGE:
        waits = key_read.proof.pause_s > 0
        assert waits == (oldest is None), "rows that it deletes speak against it, static columns do not"


DIGEST, NODE = "0123456789abcdef0123456789abcdef", "11111111-2222-3333-4444-555555555555"
KAFKA = b"\2@" + DIGEST.encode() + b"\2H" + NODE.encode() + b"\0"
PULSAR = b"\0" + KAFKA[:-1]
LONG = "long"
DECIMAL = {
    "type": "record",
    "name": "cql_decimal",
    "fields": [{"name": "bigint", "type": "bytes"}, {"name": "scale", "type": "int"}],
}
OF_DATASTAX: dict[str, tuple[Any, Any, bytes]] = {
    "text": ("string", "é", "é".encode()),
    "ascii": ("string", "", b""),
    "boolean": ("boolean", True, b"\1"),
    "blob": ("bytes", b"\0\xff", b"\0\xff"),
    "tinyint": ("int", 255, b"\xff"),
    "smallint": ("int", 65534, b"\xff\xfe"),
    "int": ("int", -1, b"\xff" * 4),
    "bigint": (LONG, -1, b"\xff" * 8),
    "float": ("float", -1.5, b"\xbf\xc0\0\0"),
    "double": ("double", -1.5, b"\xbf\xf8" + bytes(6)),
    "varint": ("bytes", b"\xff\x7f", b"\xff\x7f"),
    "decimal": (DECIMAL, {"bigint": b"\x0f", "scale": 1}, b"\0\0\0\1\x0f"),
    "inet": ("string", "2001:db8:0:0:0:0:0:1", bytes.fromhex("20010db8000000000000000000000001")),
    "timestamp": (LONG, -1, b"\xff" * 8),
    "date": ("int", -1, b"\x7f\xff\xff\xff"),
    "time": (LONG, 3_723_000_001, (3_723_000_001_000).to_bytes(8, "big")),
    "uuid": ("string", NODE, uuid.UUID(NODE).bytes),
    "timeuuid": ("string", "50554d6e-29bb-11e5-b345-feff819cdc9f", bytes.fromhex("50554d6e29bb11e5b345feff819cdc9f")),
}
"""What DataStax's agents write of a key column: its Avro type, the value, and the column's CQL bytes."""


def table(*types: str) -> Table:
    """A table whose key's first column is the partition key; DESC after a type reverses its order."""
    columns = [
        Column(f"k{i}", parse(t.removesuffix(" DESC")), "clustering" if i else "partition_key", i, t.endswith(" DESC"))
        for i, t in enumerate(types)
    ]
    return Table("ks", "t", uuid.uuid1(), tuple(columns))


def of_datastax(*columns: tuple[Any, Any]) -> bytes:
    """A key as their agent writes it: partition columns plain, clustering columns nullable."""
    fields = [{"name": f"k{i}", "type": ["null", t] if i else t} for i, (t, _) in enumerate(columns)]
    out = io.BytesIO()
    schema = fastavro.parse_schema({"type": "record", "name": "t", "namespace": "ks", "fields": fields})
    fastavro.schemaless_writer(out, schema, {f"k{i}": v for i, (_, v) in enumerate(columns)})
    return out.getvalue()


def admitted_reads(path: Path, definition: Table, *events: tuple[bytes, bytes]) -> list[Any]:
    gate = Gated(SETTINGS, None, path)  # type: ignore[arg-type]
    admitted = gate.admit([Event("t", 1, i, 3, k, v) for i, (k, v) in enumerate(events)], [], KeyCodec(definition))
    assert admitted.poison == []
    return list(admitted.key_reads.values())


@pytest.mark.parametrize("value", [KAFKA, PULSAR, b"\2\x20BACK_FILL_INSERT\0\0", b"\0\0\0"])
@pytest.mark.parametrize("name", OF_DATASTAX)
def test_the_key_of_a_datastax_agent_names_the_right_row(tmp_path: Path, name: str, value: bytes) -> None:
    """In both orders of fields, of the backfill, and of one that says nothing at all."""
    kind, shown, raw = OF_DATASTAX[name]
    alone = table(name)
    (key_read,) = admitted_reads(tmp_path, alone, (of_datastax((kind, shown)), value))
    assert (key_read.values, key_read.scope, key_read.key) == ((raw,), Scope.ROW, KeyCodec(alone).encode((raw,)))
    if name != "time":  # has a test of its own
        definition = table("int", name)
        (key_read,) = admitted_reads(tmp_path, definition, (of_datastax(("int", 1), (kind, shown)), value))
        assert (key_read.values, key_read.scope) == ((b"\0\0\0\1", raw), Scope.ROW)
        assert key_read.key == KeyCodec(definition).encode(key_read.values), "a record's key is in the exact form"


def test_an_event_without_a_digest_is_never_dropped(tmp_path: Path) -> None:
    key = of_datastax(("int", 1))
    same = [(key, b"\2\x20BACK_FILL_INSERT\0\0")] * 3 + [(key, b"\2\6abc\2H" + NODE.encode() + b"\0")] * 2
    (key_read,) = admitted_reads(tmp_path, table("int"), *same)
    assert (key_read.events, key_read.awaited) == (5, {})


def test_our_key_is_not_taken_for_theirs(tmp_path: Path) -> None:
    definition = table("smallint", "time")
    raw = (b"\xff\xfe", (3_723_000_000_004).to_bytes(8, "big"))
    (key_read,) = admitted_reads(
        tmp_path, definition, (KeyCodec(definition).encode(raw), encode(Change(DIGEST, NODE, write_time=1)))
    )
    assert (key_read.values, key_read.scope, key_read.bounds) == (raw, Scope.ROW, None)


@pytest.mark.parametrize("order", ["", " DESC"])
def test_a_time_of_datastax_stands_for_all_rows_of_its_microsecond(tmp_path: Path, order: str) -> None:
    definition = table("int", "text", "time" + order, "int")
    key = of_datastax(("int", 1), ("string", "a"), ("long", 5), ("int", 2))
    (key_read,) = admitted_reads(tmp_path, definition, (key, KAFKA), (key, KAFKA.replace(b"0", b"f")))
    ends = [Bound(True, (b"a", n.to_bytes(8, "big"))) for n in (5000, 5999)]
    assert key_read.bounds == tuple(reversed(ends) if order else ends)
    assert (key_read.scope, key_read.values, key_read.events) == (Scope.RANGE, (b"\0\0\0\1", None, None, None), 2)


def test_a_time_of_datastax_at_the_largest_number(tmp_path: Path) -> None:
    """Cassandra refuses it, and nothing here fails at it."""
    last = (1 << 63) - 1
    (key_read,) = admitted_reads(
        tmp_path, table("int", "time"), (of_datastax(("int", 1), ("long", last // 1000)), KAFKA)
    )
    assert key_read.bounds is not None
    assert key_read.bounds[1] == Bound(True, (last.to_bytes(8, "big"),))


@pytest.mark.parametrize(
    ("change", "size"),
    [
        (Change("1" * 32, NODE, write_time=1 << 63), 3),
        (Change("1" * 32, NODE, expires_at=-(1 << 66)), 3),
        (Change("1" * 32, NODE, Scope.TABLE, parts=0), 3),
        (Change("1" * 32, NODE), 70_000),
    ],
)
def test_numbers_and_keys_out_of_range(tmp_path: Path, change: Change, size: int) -> None:
    gate = Gated(SETTINGS, None, tmp_path)  # type: ignore[arg-type]
    columns = (Column(name, parse("text"), "partition_key", n) for n, name in enumerate("ab"))
    codec = KeyCodec(Table("ks", "t", uuid.uuid1(), tuple(columns)))
    event = Event("t", 1, 2, 3, codec.encode((b"x" * size, b"y")), encode(change))
    admitted = gate.admit([event], [], codec)
    assert (len(admitted.poison), admitted.key_reads) == (1, {})


def test_a_key_of_datastax_without_clustering_values_is_of_the_partition(tmp_path: Path) -> None:
    definition = table("tinyint", "time", "int")
    key = of_datastax(("int", 128), ("long", None), ("int", None))
    (key_read,) = admitted_reads(tmp_path, definition, (key, PULSAR))
    assert (key_read.values, key_read.scope, key_read.bounds) == ((b"\x80", None, None), Scope.PARTITION, None)


def test_frames_of_a_registry_are_taken_off(tmp_path: Path) -> None:
    key, frame = of_datastax(("int", 255)), b"\0\0\0\0\7"
    (key_read,) = admitted_reads(tmp_path, table("tinyint"), (frame + key, frame + KAFKA), (key, KAFKA))
    assert (key_read.values, key_read.events) == ((b"\xff",), 2)


def test_clustering_values_of_no_bytes(tmp_path: Path) -> None:
    """With others they are a row's key; alone they are published with their partition."""
    definition = table("int", "int", "uuid")
    clustering_of_row, both = (b"\0\0\0\1", b"", uuid.UUID(NODE).bytes), (b"\0\0\0\1", b"", b"")
    statics = encode(Change(DIGEST, NODE, Scope.STATIC))
    row = encode(Change(DIGEST, NODE))
    codec = KeyCodec(definition)
    first, second = admitted_reads(
        tmp_path,
        definition,
        (codec.encode(clustering_of_row), row),
        (codec.encode(both), statics),
        (codec.encode(both), row),
    )
    assert (first.values, first.scope) == (clustering_of_row, Scope.ROW)
    assert (second.values, second.scope) == ((b"\0\0\0\1", None, None), Scope.PARTITION)


def test_a_key_from_before_its_type_got_fields(tmp_path: Path) -> None:
    """ALTER TYPE ADD, while events wait on the topic: for Cassandra it is the row whose new fields are null."""

    def table_with(fields: int) -> Table:
        point = CqlType(
            "udt", (parse("int"), parse("text"), parse("int"))[:fields], True, "point", ("x", "y", "z")[:fields]
        )
        nested = CqlType("list", (point,), frozen=True)
        columns = [Column("p", parse("int"), "partition_key", 0), Column("a", nested, "clustering", 0)]
        columns += [Column("b", point, "clustering", 1), Column("c", parse("text"), "clustering", 2)]
        return Table("ks", "t", uuid.UUID(int=1), tuple(columns))

    def sized(*values: bytes) -> bytes:
        return b"".join(len(v).to_bytes(4, "big") + v for v in values)

    x, null = sized(b"\0\0\0\5"), b"\xff" * 4
    short = (b"\0\0\0\1", b"\0\0\0\1" + sized(x), x, b"c")
    long = (b"\0\0\0\1", b"\0\0\0\1" + sized(x + null + null), x + null + null, b"c")
    row = encode(Change(None, None))
    for before in (1, 2):
        (key_read,) = admitted_reads(
            tmp_path,
            table_with(3),
            (KeyCodec(table_with(before)).encode(short), row),
            (KeyCodec(table_with(3)).encode(long), row),
        )
        assert (key_read.values, key_read.events) == (long, 2)
        assert key_read.key == KeyCodec(table_with(3)).encode(long)
