"""What is ordinary about keys, in compiled loops: the same as the long way makes, plain and compiled."""

from __future__ import annotations

import copy
import re
import struct
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import twice
from connector.gated import Gated
from hypothesis import given, settings
from hypothesis import strategies as st

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces import resolved_key as resolved_module
from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.interfaces.event import Event, WaitingChange
from helenus_connector.interfaces.image import Image, TimedColumns
from helenus_connector.reread import resolver
from helenus_connector.reread._evidence import _row as row_of
from helenus_connector.reread._key_read import PROVEN, KeyRead, Proof
from helenus_connector.reread._key_reads import KeyReads
from helenus_connector.reread._proof import ALL_COLUMNS, ReportedDeletion
from helenus_connector.shape.row import row
from helenus_connector.shape.row.row import RowShape
from helenus_connector.unconfirmed.unconfirmed_key import PublishedKeys, UnconfirmedKey
from helenus_connector.unconfirmed.unproven_changes import UnprovenChange
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.event.change import Change, Effect, Origin, Scope, column_bit
from helenus_schemas.event.own_format import match_own_format
from helenus_schemas.event.wire import encode

REREAD = Path(resolver.__file__).parent
SOURCES = [
    *(REREAD / f"_row_{name}.py" for name in ("reads", "proofs", "outcomes")),
    REREAD.with_name("cassandra_rows") / "row_images.py",
]
RESOLVED = Path(resolved_module.__file__).with_name("resolved_key.py")
RECORDS = Path(row.__file__).with_name("_row_records.py")
T = 1_700_000_000_000_000
COLUMNS = ("a", "b", "m")
TABLE = Table(
    "ks",
    "t",
    uuid.UUID(int=1),
    (
        Column("k", parse("int"), "partition_key", 0),
        Column("a", parse("int")),
        Column("b", parse("text")),
        Column("m", parse("map<text, int>")),
    ),
)
CODEC = KeyCodec(TABLE)
SETTINGS = {"name": "n", "keyspace": "ks", "table": "t", "value.converter.schema.registry.url": "http://127.0.0.1:1"}
NODE = "ad310466-96a7-4cb2-acf4-59535a960810"


def raw(n: int) -> bytes:
    return struct.pack(">i", n)


def attributes_of(key_read: KeyRead) -> object:
    """All that a work holds: two of them are never equal, and where it is compiled it has no dict."""
    return key_read.__reduce__()[1:] if resolved_module.COMPILED else vars(key_read)


@pytest.fixture(scope="module", params=["plain", "compiled"])
def ordinary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The functions of all compiled loops over rows."""
    functions: dict[str, Any] = {}
    for source in SOURCES:
        module = twice.plain(source) if request.param == "plain" else twice.compiled(source, tmp_path_factory)
        functions |= vars(module)
    return SimpleNamespace(**functions)


@pytest.fixture(scope="module", params=["plain", "compiled"])
def shapes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return twice.plain(RECORDS) if request.param == "plain" else twice.compiled(RECORDS, tmp_path_factory)


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gated]:
    replicas: Any = SimpleNamespace(factor=lambda: 3, are_all_read=lambda: True, counts_everywhere=True)
    made = Gated(ConnectorSettings.from_properties(SETTINGS, "test"), replicas, tmp_path_factory.mktemp("gated"))
    made.admit([], (), CODEC)
    yield made
    made.close()


effects = st.sampled_from(
    [
        0,
        int(Effect.LIVE | Effect.ROW) | column_bit("a") | column_bit("b"),
        int(Effect.LIVE) | column_bit("b"),
        int(Effect.LIVE | Effect.DELETES) | column_bit("a"),
        int(Effect.DELETES) | column_bit("m"),
        int(Effect.GONE),
        int(Effect.COUNTER),
        -1,
        1 << 40,
    ]
)
times = st.sampled_from([T, T - 1, T + 1, -5])
expiries = st.sampled_from([None, 1_700_000_000, 1_800_000_000, 1 << 40])


@st.composite
def admitted(draw: st.DrawFn) -> AdmittedChange:
    scope = draw(st.sampled_from([Scope.ROW] * 6 + [Scope.PARTITION, Scope.TABLE, Scope.STATIC, Scope.RANGE]))
    change = Change(
        "0" * 32,
        NODE,
        scope,
        write_time=draw(st.one_of(st.none(), times)),
        expires_at=draw(expiries),
        effect=draw(effects),
        all_expired_at=draw(expiries),
        origin=draw(st.sampled_from([Origin.LOG, Origin.LOG, *Origin])),
    )
    key = draw(st.integers(0, 2))
    values: Any = () if scope is Scope.TABLE else draw(st.sampled_from([(raw(key),)] * 8 + [(None,)]))
    event = Event("events", draw(st.integers(0, 1)), draw(st.integers(0, 9)), 5, raw(key), b"v")
    made = AdmittedChange(
        event, change, raw(key), values, draw(st.one_of(st.none(), st.binary(min_size=1, max_size=1)))
    )
    if scope in (Scope.ROW, Scope.STATIC, Scope.PARTITION) and change.origin is Origin.LOG and draw(st.booleans()):
        match = match_own_format(encode(change))
        made = AdmittedChange(event, None, made.key, values, made.id, match=match)
    made.is_published = draw(st.integers(0, 9)) == 0
    made.is_released = draw(st.integers(0, 9)) == 0
    if draw(st.integers(0, 9)) == 0:
        made.verifying = WaitingChange(b"i", event, (NODE,), 1)
    return made


@given(changes=st.lists(admitted(), max_size=12), more=st.lists(st.integers(0, 3), max_size=12), has_rows=st.booleans())
def test_works_of_changes(
    ordinary: SimpleNamespace, changes: list[AdmittedChange], more: list[int], has_rows: bool
) -> None:
    seen: tuple[list[AdmittedChange], list[AdmittedChange]] = ([], [])
    made, expected = KeyReads(CODEC, 6, 4), KeyReads(CODEC, 6, 4)
    ordinary.collect_row_reads(
        iter(changes), made.by_name, made._reads_of_changes, 6, has_rows, seen[0].append, made.add
    )
    deletes = int(Effect.GONE | Effect.DELETES)
    for change in changes:
        expected.add(change)
        may_delete = change.change.effect & deletes or change.change.expires_at is not None
        if change.id is not None and (may_delete or change.change.scope is Scope.TABLE):
            seen[1].append(change)
    for change, copies in zip(changes, more, strict=False):
        change.copies += copies
    for key_reads in (made, expected):
        key_reads.add_due((), lambda *_: 5)
    for reads, other in ((made.by_name, expected.by_name), (made.verifications, expected.verifications)):
        assert list(reads) == list(other)
        assert [attributes_of(key_read) for key_read in reads.values()] == [
            attributes_of(key_read) for key_read in other.values()
        ]
    assert (made.waiting, made.outdated) == (expected.waiting, expected.outdated)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("form", ["plain", "compiled"])
def test_a_work_plain_and_compiled(form: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    source = REREAD / "_key_read.py"
    module = twice.plain(source) if form == "plain" else twice.compiled(source, tmp_path_factory)
    event = Event("events", 1, 5, 7_000, b"k", b"v")
    made = module.KeyRead("events", 1, b"k", (b"v",), Scope.ROW, None, 3, event, 6, True)
    assert (made.name, made.scope, made.parts, made.event) == (("events", 1, b"k", None), Scope.ROW, 3, event)
    assert (made.consistency, made.is_scanned, made.awaited, made.proof) == (6, True, {}, module.PROVEN)
    assert (made.events, made.since, made.is_marked, made.must_be_published) == (0, 7.0, False, False)
    nothing = "unconfirmed read_at first_expires oldest verifying newest after".split()
    assert [getattr(made, name) for name in nothing] == [None] * len(nothing)
    assert (made.has_untimed_rows, made.is_outdated, made.unseen) == (False, False, frozenset())
    made.events = 1
    assert made.must_be_published
    made.events, made.unconfirmed = 0, UnconfirmedKey("events", 1, b"k", Scope.ROW, since=5.0)
    assert (made.since, made.must_be_published) == (5.0, False)
    made.unconfirmed.unread = 1
    assert made.must_be_published
    made.scope = Scope.PARTITION
    assert made.is_marked
    made.note_live_row(Image((b"x",), T, (struct.pack(">q", T - 1),), TimedColumns((1,), (False,), 0, 0, 0)))
    assert (made.oldest, made.has_untimed_rows) == (T - 1, False)
    made.note_live_row(None)
    assert (made.oldest, made.has_untimed_rows) == (T - 1, True)


OF_THE_BATCH = set(
    "topic partition key values scope bounds parts event events newest is_released consistency is_scanned awaited"
    " unconfirmed first_expires verifying deleted_at".split()
)
OF_AN_ATTEMPT = set(
    "write_time expires before after read_rows last_digest failure cells op _written continues is_confirmed digest"
    " published dead_lettered records read_at proof oldest has_untimed_rows is_outdated unseen".split()
)


@pytest.mark.parametrize("form", ["plain", "compiled"])
def test_another_pass_has_nothing_of_the_one_before(form: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A field that is new belongs to one of them: to the batch, if it is set before the first pass."""
    source = REREAD / "_key_read.py"
    module = twice.plain(source) if form == "plain" else twice.compiled(source, tmp_path_factory)
    types = [path.with_suffix(".pxd").read_text() for path in (source, RESOLVED)]
    declared = re.findall(r"cdef public (?:long long|\w+) (.+)", "\n".join(types))
    assert set(", ".join(declared).split(", ")) == OF_THE_BATCH | OF_AN_ATTEMPT
    new = module.KeyRead("", 0, b"", (), Scope.ROW)
    before = module.KeyRead("", 0, b"", (), Scope.ROW)
    typed = {"key": b"k", "digest": b"d", "values": (b"v",), "awaited": {b"c": UnprovenChange(5)}}
    for name in OF_THE_BATCH | OF_AN_ATTEMPT:
        setattr(before, name, typed.get(name, 7))
        assert getattr(before, name) != getattr(new, name)
    after = before.for_next_pass()
    for name in OF_THE_BATCH:
        assert getattr(after, name) == getattr(before, name)
    for name in OF_AN_ATTEMPT:
        assert getattr(after, name) == getattr(new, name)


bits = tuple(column_bit(name) for name in COLUMNS)
TIMED = TimedColumns(bits, (True, True, False), 0, 0, bits[2])


@st.composite
def image(draw: st.DrawFn) -> Image | None:
    if not draw(st.integers(0, 4)):
        return None
    written = [draw(st.sampled_from([T, T, T - 1, -5, None])) for _ in COLUMNS]
    cells = tuple(None if time is None else struct.pack(">q", time) for time in written)
    newest = max([time for time in written if time is not None], default=None)
    return Image((raw(1), b"x", None), newest, draw(st.sampled_from([cells, ()])), TIMED, draw(expiries))


@st.composite
def drawn_key_read(draw: st.DrawFn) -> KeyRead:
    made = KeyRead("events", 0, raw(1), (raw(1),), draw(st.sampled_from([Scope.ROW] * 9 + [Scope.PARTITION])))
    names = draw(st.lists(st.binary(min_size=1, max_size=1), max_size=3, unique=True))
    effects_of = effects.filter(lambda effect: 0 <= effect < 1 << 32)
    made.awaited = {
        name: UnprovenChange(
            draw(st.sampled_from([T, T, T - 1, None])), effect=draw(effects_of), all_expired_at=draw(expiries)
        )
        for name in names
    }
    made.newest, made.first_expires = draw(st.one_of(st.none(), times)), draw(expiries)
    made.events, made.consistency = draw(st.integers(0, 2)), draw(st.sampled_from([1, 6, 5]))
    if not draw(st.integers(0, 9)):
        made.unconfirmed = UnconfirmedKey("events", 0, raw(1), made.scope, image=b"i")
    if not draw(st.integers(0, 9)):
        made.verifying = []
    return made


deletions = st.builds(
    ReportedDeletion,
    st.sampled_from([T - 2, T - 1, T, T + 1]),
    st.sampled_from([ALL_COLUMNS, bits[0], bits[1] | bits[2]]),
)


@settings(max_examples=400, deadline=None)
@given(
    each=drawn_key_read(),
    image_read=image(),
    reported=st.integers(0, 3),
    shows_all=st.booleans(),
    deletes=st.booleans(),
    row_deletions=st.lists(deletions, max_size=1),
    more=drawn_key_read(),
)
def test_works_that_are_read(
    ordinary: SimpleNamespace,
    gated: Gated,
    each: KeyRead,
    image_read: Image | None,
    reported: int,
    shows_all: bool,
    deletes: bool,
    row_deletions: list[ReportedDeletion],
    more: KeyRead,
) -> None:
    """Though others of its events partition were deleted, as `deletes` says; of this row `row_deletions` are."""
    reader: Any = SimpleNamespace(shows_all_times=shows_all, table=SimpleNamespace(clustering=()))
    gated.batch._reader = reader
    read_pass: Any = gated.batch._begin_pass(False)
    prepared: list[KeyRead] = []

    def prepare(key_read: KeyRead) -> None:
        prepared.append(key_read)
        read_pass.prepare(key_read)

    expected = copy.copy(each)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gated.gate, "count_replicas", lambda *_: reported)
        patch.setattr(type(gated.caches.cache_for("events", 0)), "has_deletions", deletes)
        patch.setattr(read_pass.evidence, "_deletions", lambda *_: row_deletions if deletes else [])
        min_reporters = read_pass.evidence.min_reporters(each.consistency)
        reads_to_join = {(raw(1),): [more]} if more.events else {}
        answers = [((raw(1),), image_read)]
        reads_by_key = {(raw(1),): each}
        count_replicas, may_show_shadowed = gated.gate.count_replicas, read_pass.evidence.may_show_shadowed
        group = ordinary.prove_row_reads(
            reads_by_key,
            answers,
            reads_to_join,
            7.5,
            min_reporters,
            count_replicas,
            lambda _: deletes,
            may_show_shadowed,
            shows_all,
            prepare,
        )
        expected.read_at, expected.after = 7.5, image_read
        read_pass.prepare(expected)
    assert [attributes_of(key_read) for key_read in group] == [
        attributes_of(key_read) for key_read in ([expected, more] if reads_to_join else [expected])
    ]
    may_show_shadowed = bool(deletes and row_deletions) and (
        not row_of(image_read).times or any(deletion.shadows_cells_of(row_of(image_read)) for deletion in row_deletions)
    )
    is_shown = image_read is not None and not may_show_shadowed
    plain = each.unconfirmed is None and each.verifying is None
    if (
        plain
        and is_shown
        and all(image_read.shows_write(change.write_time) and not change.effect for change in each.awaited.values())
    ):  # type: ignore[union-attr]
        assert not any(each is key_read for key_read in prepared), "the ordinary case goes the short way"


@given(key_reads=st.lists(drawn_key_read(), max_size=5), data=st.data())
def test_works_that_are_done(ordinary: SimpleNamespace, key_reads: list[KeyRead], data: st.DataObject) -> None:
    copies_left = {}
    for key_read in key_reads:
        key_read.partition = data.draw(st.integers(0, 2))
        key_read.published, key_read.dead_lettered = data.draw(st.booleans()), data.draw(st.booleans())
        key_read.proof = data.draw(st.sampled_from([PROVEN, Proof({b"x": UnprovenChange(None)}), Proof({}, [b"x"])]))
        if data.draw(st.integers(0, 5)) == 0:
            copies_left[id(key_read)] = 1
    marked: list[Any] = []
    others: list[KeyRead] = []
    events = ordinary.mark_confirmed(key_reads, copies_left, lambda *arguments: marked.append(arguments), others.append)
    plain = [
        key_read
        for key_read in key_reads
        if key_read.published
        and key_read.proof is PROVEN
        and key_read.unconfirmed is None
        and key_read.verifying is None
        and not key_read.dead_lettered
        and id(key_read) not in copies_left
    ]
    assert events == sum(key_read.events for key_read in plain)
    places = {(key_read.topic, key_read.partition): list[bytes]() for key_read in plain}
    for key_read in plain:
        places[key_read.topic, key_read.partition] += key_read.awaited
    assert marked == [(*topic_partition, changes, True) for topic_partition, changes in places.items()]
    assert [id(key_read) for key_read in others] == [
        id(key_read) for key_read in key_reads if not any(key_read is other for other in plain)
    ]


@given(key_reads=st.lists(drawn_key_read(), max_size=8), clustered=st.booleans())
def test_rows_by_the_level_to_read_them_at(
    ordinary: SimpleNamespace, key_reads: list[KeyRead], clustered: bool
) -> None:
    by_level, others = ordinary.group_by_level(key_reads, clustered)
    of_rows = [key_read for key_read in key_reads if key_read.scope is Scope.ROW or not clustered]
    alone = [key_read for key_read in of_rows if key_read.unconfirmed is None and key_read.verifying is None]
    for level, members in by_level.items():
        assert [id(key_read) for key_read in members] == [
            id(key_read) for key_read in alone if key_read.consistency == level
        ]
    assert sum(map(len, by_level.values())) == len(alone)
    assert [id(key_read) for key_read in others] == [
        id(key_read) for key_read in key_reads if not any(key_read is other for other in alone)
    ]


@given(key_reads=st.lists(drawn_key_read(), max_size=8), data=st.data())
def test_what_is_published_where(ordinary: SimpleNamespace, key_reads: list[KeyRead], data: st.DataObject) -> None:
    for key_read in key_reads:
        key_read.partition, key_read.key = data.draw(st.integers(0, 2)), data.draw(st.binary(max_size=2))
        key_read.read_rows = data.draw(st.sampled_from([None, None, lambda _: iter(())]))
    published_keys, expected = (
        defaultdict[Any, PublishedKeys](PublishedKeys),
        defaultdict[Any, PublishedKeys](PublishedKeys),
    )
    for each in (published_keys, expected):
        each["events", 0].keys.append(b"")
        each["events", 0].touches(b"")
    ordinary.note_published(iter(key_reads), published_keys)
    for key_read in key_reads:
        expected[key_read.topic, key_read.partition].add(key_read.key, key_read.read_rows is not None)
    assert published_keys == expected


@given(written=st.lists(st.one_of(st.none(), st.just(b""), st.integers(-(2**63), 2**63 - 1)), max_size=4))
def test_the_newest_of_write_times(ordinary: SimpleNamespace, written: list[Any]) -> None:
    cells = tuple(struct.pack(">q", time) if isinstance(time, int) else time for time in written)
    known_times = [time for time in written if isinstance(time, int)]
    assert ordinary.newest_write_time(cells) == max(known_times, default=None)


def test_images_and_the_keys_that_they_are_of(ordinary: SimpleNamespace) -> None:
    rows = [(raw(n), raw(n), b"x", struct.pack(">q", T + n), None) for n in range(3)]
    images = ordinary.make_images(rows, 1, 3, 2, TIMED, lambda row: len(row))
    assert images[1] == Image((raw(1), b"x"), T + 1, (struct.pack(">q", T + 1), None), TIMED, 5)
    assert ordinary.make_images([(raw(1),)], 1, 1, 0, TIMED, None) == [Image((raw(1),), None, (), TIMED)]
    by_key = {(raw(n),): image for n, image in enumerate(images)}
    keys_to_match = [(raw(n),) for n in (2, 5, 0)]
    assert ordinary.match_keys(keys_to_match, by_key, None, False) == (
        [(keys_to_match[0], images[2]), (keys_to_match[2], images[0])],
        [keys_to_match[1]],
        2,
    )
    assert ordinary.match_keys(keys_to_match, by_key, lambda key: key, True)[0] == [
        (keys_to_match[0], images[2]),
        (keys_to_match[1], None),
        (keys_to_match[2], images[0]),
    ]


class Ids:
    def register(self, subject: str, schema: str) -> int:
        return 1

    def keep(self, subject: str, schema: str, other: str) -> int:
        return 2


SNAPSHOT = encode(Change(None, None, origin=Origin.SNAPSHOT))
REPAIR = encode(Change(None, None, origin=Origin.REPAIR))


@st.composite
def resolved(draw: st.DrawFn) -> KeyRead:
    made = draw(drawn_key_read())
    made.key, made.values = CODEC.encode((raw(1),)), draw(st.sampled_from([(raw(1),), (raw(1),), (b"",)]))
    value = st.one_of(st.none(), st.sampled_from([raw(5), b"", b"x", b"\xff", b"ab" * 3000]))
    pairs = struct.pack(">ii1si4s", 1, 1, b"k", 4, raw(5))
    if draw(st.integers(0, 3)):
        cells = (draw(value), draw(value), draw(st.sampled_from([None, pairs, b"bad"])))
        made.after = Image(cells, draw(st.one_of(st.none(), times)))
    made.write_time, made.expires = draw(st.one_of(st.none(), times)), draw(expiries)
    if draw(st.booleans()):
        made.event = Event("events", 0, 5, 5, made.key, draw(st.sampled_from([b"\2xyz", SNAPSHOT, REPAIR, None])))
    if not draw(st.integers(0, 9)):
        made.op = draw(st.sampled_from(["c", "u", "d"]))
    return made


@given(
    key_read=resolved(),
    headers=st.lists(st.sampled_from(["schema_id", "writetime", "expires", "origin", "op", "node"]), unique=True),
    compat=st.sampled_from(["exact", "exact", "datastax"]),
)
def test_records_of_rows(shapes: ModuleType, key_read: KeyRead, headers: list[str], compat: str) -> None:
    properties = {**SETTINGS, "headers": ",".join(headers), "key.compat": compat}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row, "RowRecords", shapes.RowRecords)
        shape: Any = RowShape(TABLE, ConnectorSettings.from_properties(properties, "test"), Ids())  # type: ignore[arg-type]
    (record,) = shape.rows([key_read])
    (expected,) = shape.records(key_read)
    assert record is None or (expected.cause is None and record == expected.record)
    cells = key_read.after.values if key_read.after else ()
    bad = b"" in key_read.values or b"" in cells or b"\xff" in cells or b"bad" in cells or cells[:1] == (b"x",)
    if compat == "exact" and "node" not in headers and key_read.op is None and not bad and cells[:1] != (b"ab" * 3000,):
        assert record is not None, "the ordinary case goes the short way"
