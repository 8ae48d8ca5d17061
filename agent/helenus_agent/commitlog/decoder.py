"""Commit-log entries to events: the decoder, and the encoder of what it finds, in one pass over the bytes.

This file runs as it is; compiled by Cython it takes its C types from decoder.pxd, and gives the same results.
So both must agree on corrupt bytes: every length is checked, and only sums that wrap at 64 bits in C are masked here.

It is one long module on purpose. A call into another module costs as much as decoding a column; and a `TablePlan` is
built of this module's own C classes and constants, which another module can't see. Tests load the plain form next to
the compiled one, and each builds the plans that it can read.

The grammar, as Cassandra 4.0 - 6.0 writes versions 7 to 9 (CommitLog.add, Mutation.serializer,
PartitionUpdate.serializer, UnfilteredRowIteratorSerializer, UnfilteredSerializer, Cell.serializer,
ClusteringPrefix.serializer). Big-endian.

    entry      = int size, int crc(size), mutation of `size` bytes, int crc; size 0: nothing more in this section.
                 The last crc continues the first: crc32(mutation, crc32(size)).
    vint       = as many leading one bits in the first byte as bytes follow; the value is what is left. Unsigned.
    vbytes     = vint length, bytes
    mutation   = [from version 9 on] byte flags: 1 may conflict with transactions; vint n, n updates
    update     = 16 bytes of table id, [from version 9 on] vint epoch of the table's last schema change, vbytes
                 partition key, byte flags: 1 empty (the end), 4 partition deletion, 8 static row, 16 row estimate;
                 vint timestamp - epoch, vint local deletion time - epoch, vint ttl (the lowest of the update: the
                 others are differences to them); [8] columns of the statics; columns; [4] deletion; [8] row;
                 [16] vint; rows and markers up to flags 1
    columns    = vint n, n vbytes of names. Their types are the schema's.
    deletion   = vint timestamp, vint local deletion time; "none" is the lowest timestamp there is
    row        = byte flags: 4 timestamp, 8 expires, 16 deletion, 32 has all columns, 64 a complex column is deleted,
                 128 a second flags byte follows: 1 static, 2 shadowable deletion; clustering (a static row has none);
                 [4] vint timestamp; [8] vint ttl, vint expiry; [16] deletion; [not 32] subset; per column: cell or
                 complex
    clustering = per 32 values a vint of 2 bits each, 1 empty, 2 null; values, fixed by type or vbytes
    subset     = vint: bits of the missing columns; of 64 columns or more: vint how many are missing, then as vints
                 the present ones if they are less than half, else the missing ones
    cell       = byte flags: 1 tombstone, 2 expires, 4 no value, 8 the row's timestamp, 16 the row's ttl and expiry;
                 [not 8] vint timestamp; [1 or 2, not 16] vint local deletion time; [2, not 16] vint ttl;
                 [in a complex column] vbytes path; [not 4] value: fixed by the column's type, or vbytes
    complex    = [row's 64] deletion; vint n, n cells
    marker     = byte flags 2, byte kind, ushort n, clustering of n values, deletion; a boundary (kinds 2 and 5) has two
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from helenus_agent.commitlog.segment_header import Corrupt
from helenus_schemas.codec.to_avro import encoder
from helenus_schemas.cql.table import Column as TableColumn
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import MAY_BE_EMPTY, stand_in, vint_bytes
from helenus_schemas.event.cells import VERSION, Described, columns_text, described
from helenus_schemas.event.change import Effect, column_bit

try:
    # What hashlib wraps: half the cost for a mutation's hundred bytes.
    from _md5 import md5  # type: ignore[import-not-found]
except ImportError:
    from hashlib import md5

COMPILED = not __file__.endswith(".py")
_compiled = COMPILED

# From this version on a mutation has flags, and its updates have their table's epoch.
_FLAGGED = 9

# The code of a column: the width of its values, or one of these.
_VBYTES = 0
_COMPLEX = -1
_NO_BYTES = -2
_NO_COLUMN = -3

# The Avro form of a key column.
_SIZED = 0
_INTEGER = 1
_DATE = 2
_UUID = 3
_BOOLEAN = 4
_REVERSED = 5
_OTHER = 6
_FORMS = {
    **dict.fromkeys("ascii text blob varint".split(), _SIZED),
    **dict.fromkeys("tinyint smallint int bigint timestamp time".split(), _INTEGER),
    **dict.fromkeys("uuid timeuuid".split(), _UUID),
    **dict.fromkeys("float double".split(), _REVERSED),
    "boolean": _BOOLEAN,
    "date": _DATE,
}
# A value's bytes, where the commit log does not fix them but the type does.
_WIDTHS = {"tinyint": 1, "smallint": 2, "date": 4, "time": 8}

_TIMESTAMP_EPOCH = 1442880000000000
_DELETION_EPOCH = 1442880000
_NONE = -0x8000000000000000
_NEVER = 0x7FFFFFFFFFFFFFFF
_HEADERS = 16

_ROW = 0
_STATIC = 1
_PARTITION = 2
_RANGE = 3
_SCHEMA = 1
_HIDDEN = 2
_SCOPES = (b"\0", b"\2", b"\4", b"\6")
_LIVE = int(Effect.LIVE)
_DELETES = int(Effect.DELETES)
_WRITES_ROW = int(Effect.ROW)
_GONE = int(Effect.GONE)
_COUNTER = int(Effect.COUNTER)
_OF_RANGE = bytes((_DELETES << 1, 0))

# Avro longs by two bytes: pairs that go on, and the last one or two.
_PAIRS = tuple(bytes((v & 0x7F | 0x80, v >> 7 | 0x80)) for v in range(0x4000))
_LAST = tuple(bytes((v,)) if v < 0x80 else bytes((v & 0x7F | 0x80, v >> 7)) for v in range(0x4000))
_FRAME = Struct(">II")
# The bytes of a vint, by its first.
_SIZES = bytes(9 - (first ^ 0xFF).bit_length() for first in range(256))
_BYTES = tuple(bytes((value,)) for value in range(256))
# A key of one column has no stand-in.
_NONE_EMPTY: list[bytes] = []
# Where a long is written in C.
_SCRATCH = bytearray(10)

DecodedChange = tuple[int, bytes, bytes, int, bytes]
Column = tuple[int, int]
Header = tuple[bytes, tuple[Column, ...], bytes]


class KeyColumn:
    """A key column: its Avro `form`, the `width` a value must have (0: any), its `fixed` width in a clustering (0:
    vbytes), whether no bytes are `hollow`, none of its values, and `encode`, from CQL bytes to Avro bytes, for other
    forms. `stand_in`: the Avro that stands for no bytes in a partition key."""

    def __init__(
        self,
        form: int,
        width: int,
        fixed: int,
        hollow: bool,
        encode: Callable[[bytes], bytes],
        stand_in: bytes = b"",
    ) -> None:
        self.form = form
        self.width = width
        self.fixed = fixed
        self.hollow = hollow
        self.encode = encode
        self.stand_in = stand_in


class TablePlan:
    """What the decoder needs to know of a table.

    `index`: its place among the followed tables, -1 if it is none. `reason`: why a CDC table is not followed, empty for
    tables without CDC. `is_known`: False for a table without schema, which can't be walked. `schema`: its mutations
    change the schema. `view`: it is a materialised view; its mutations have updates of views alone. `columns`: name to
    code and bit in an `Effect`, keys left out. `headers`: lists of columns met lately. `malformed`: changes that were
    skipped for their keys. `cells`: if its events carry their cells, the first bytes of these: version, ids of the
    table and its definition. `column_texts`: then its columns.
    """

    def __init__(
        self, index: int = -1, reason: str = "", is_known: bool = True, schema: bool = False, view: bool = False
    ) -> None:
        self.index = index
        self.reason = reason
        self.is_known = is_known
        self.schema = schema
        self.view = view
        self.name = ""
        self.partition: tuple[KeyColumn, ...] = ()
        self.clustering: tuple[KeyColumn, ...] = ()
        self.columns: dict[bytes, Column] = {}
        self.headers: list[Header] = []
        self.malformed = 0
        self.cells = b""
        self.column_texts: dict[bytes, Described] = {}

    def describe(self, names: list[bytes]) -> bytes:
        """Return columns as events with cells have them: an Avro string."""
        text = columns_text([self.column_texts[name] for name in names]).encode()
        return long_bytes(len(text)) + text

    def give_up(self, column: bytes) -> None:
        """Note that the schema does not have this column either: entries that name it can't be decoded."""
        self.columns[column] = (_NO_COLUMN, 0)


def plan_table(table: Table, index: int = -1, reason: str = "", schema: bool = False, cells: bool = False) -> TablePlan:
    """Return the plan of a table; with `cells` its events carry them. Raises ValueError if it is to be followed and its
    key has no Avro form.
    """
    plan = TablePlan(index, reason, True, schema)
    plan.name = table.full_name
    parts = tuple([_part(c.type, index >= 0, c.kind == "clustering") for c in table.primary_key])
    plan.partition = parts[: len(table.partition_key)]
    plan.clustering = parts[len(table.partition_key) :]
    plan.columns = {c.name.encode(): _column(c) for c in (*table.dropped.values(), *table.values)}
    if cells:
        plan.cells = b"".join((long_bytes(VERSION), table.id.bytes, bytes.fromhex(table.schema_id)))
        plan.column_texts = {
            c.name.encode(): described(c.name, c.type) for c in (*table.dropped.values(), *table.values)
        }
    return plan


def _part(t: CqlType, encoded: bool, clustering: bool) -> KeyColumn:
    # Of equal clustering values of these types there are several forms, and `encode` makes them one; in a partition key
    # it refuses booleans that are no 0 or 1.
    others = ("varint", "float", "double") if clustering else ("boolean",)
    form = _OTHER if t.name in others else _FORMS.get(t.name, _OTHER)
    width = t.width or _WIDTHS.get(t.name, 0)
    hollow = t.name not in MAY_BE_EMPTY
    instead = encoder(t)(stand_in(t)) if hollow and encoded and not clustering else b""
    if form == _OTHER:
        return KeyColumn(form, 0, t.width, hollow, encoder(t, clustering) if encoded else bytes, instead)
    return KeyColumn(form, width, t.width, hollow, bytes, instead)


def _column(column: TableColumn) -> Column:
    bit = column_bit(column.name)
    return _code(column.type), bit | _COUNTER if column.type.name == "counter" else bit


def _code(t: CqlType) -> int:
    if t.multicell:
        return _COMPLEX
    if t.name == "custom" and t.label.endswith("EmptyType"):
        return _NO_BYTES
    return t.width or _VBYTES


class UnknownSchema(Exception):
    """The mutation names a table, or a column of a table, that is not in the plans."""

    def __init__(self, table: bytes, column: bytes | None = None) -> None:
        super().__init__(table, column)
        self.table = table
        self.column = column

    def __str__(self) -> str:
        column = "" if self.column is None else f", column {self.column.decode(errors='replace')}"
        return f"table {self.table.hex()}{column}"


class DecodedBatch(NamedTuple):
    """What a call of `decode` found.

    `changes`: (index of the table, partition key, event key, event value), in the log's order. `next`: offset of the
    first entry not decoded. `mutations`: how many were read. `skipped`: a reason per thing that is not in `changes`.
    `problems`: (position, what is wrong) of entries that can't be decoded. `broken`: the rest of the section can't be
    read. `schema`: a mutation of the schema went by, `unknown`: one needs a newer schema; decoding stopped there.
    """

    changes: list[tuple[int, bytes, bytes, bytes]]
    next: int
    mutations: int
    skipped: list[str]
    problems: list[tuple[int, str]]
    broken: bool
    schema: bool
    unknown: UnknownSchema | None


def decode(
    data: bytes,
    base: int,
    final: bool,
    plans: dict[bytes, TablePlan],
    node: str,
    segment: int,
    version: int,
    max_changes: int,
    live: bool = False,
    padded: bool = True,
) -> DecodedBatch:
    """Decode the entries in `data`, whose first byte is an entry's first, at the position `base` of a `segment` of this
    `version`.

    `final` says that `data` ends where its section does; else an entry cut off at the end is left for the next call.
    `live` says that no sync marker vouches for `data` yet: what is no whole entry with right CRCs is not written yet.
    `padded` says that zeros may fill up `data` after its last entry; else they stand for entries that are gone.
    `plans` by table id, `node` is the host id as text. Stops after the mutation that reaches `max_changes`.
    """
    changes: list[tuple[int, bytes, bytes, bytes]] = []
    notes: list[str] = []
    problems: list[tuple[int, str]] = []
    decoded: list[DecodedChange] = []
    variable: list[tuple[int, int, bytes]] = []
    unknown: UnknownSchema | None = None
    schema = False
    broken = False
    mutations = 0
    node_bytes = b"\2" + long_bytes(len(node)) + node.encode() + b"\0"
    segment_bytes = long_bytes(segment)
    heads = [b"".join((node_bytes, name, b"\0\2", segment_bytes)) for name in _SCOPES]
    raw = data
    end = len(data)
    p = 0
    while p < end and len(changes) < max_changes:
        remaining = end - p
        size = size_crc = 0
        if remaining >= 8 and _compiled:
            size = u32(data, p)
            size_crc = u32(data, p + 4)
        elif remaining >= 8:
            size, size_crc = _FRAME.unpack_from(data, p)
        if live and (remaining < 12 + size or size < 10):
            break
        if remaining < 12 + size or size < 10:
            # Less than an entry: more is to come, or it is the padding of the end, or a size that can't be.
            if data.count(b"\0", p) == remaining and (final or remaining >= 4):
                if not padded:
                    problems.append((base + p, "zeros where an entry was"))
                    broken = True
                p = end
            elif final or (remaining >= 8 and (size < 10 or crc32(raw[p : p + 4]) != size_crc)):
                problems.append((base + p, f"an entry of {size} bytes with {remaining} left"))
                broken = True
            break
        payload = raw[p + 8 : p + 8 + size]
        after = p + 12 + size
        if crc32(payload, size_crc) != u32(data, after - 4):
            if live:
                break
            problems.append((base + p, "an entry with a wrong CRC"))
            if crc32(raw[p : p + 4]) != size_crc:
                broken = True
                break
            p = after
            continue
        mark = len(notes)
        try:
            met = mutation(payload, version, plans, decoded, notes, variable)
            schema = met == _SCHEMA
            if met == _HIDDEN:
                problems.append((base + p, "a batch over an unknown table, which hides what follows it"))
        except UnknownSchema as error:
            unknown = error
            del notes[mark:]
            break
        except (IndexError, Corrupt) as error:
            problem = str(error) if isinstance(error, Corrupt) else "a mutation that ends too early"
            first = plans.get(payload[2:18] if version >= _FLAGGED else payload[1:17])
            problems.append((base + p, problem if first is None else f"{problem}, table {first.name or 'a view'}"))
            del notes[mark:]
            decoded.clear()
        mutations += 1
        p = after
        if decoded:
            digest = md5(replicated(payload, variable) if variable else payload).hexdigest().encode()
            position = long_bytes(base + after)
            if len(decoded) == 1:
                index, partition, key, scope, last = decoded[0]
                value = b"".join((b"\2@", digest, heads[scope], position, last))
                changes.append((index, partition, key, value))
            else:
                parts = long_bytes(len(decoded))
                for part in range(len(decoded)):
                    index, partition, key, scope, last = decoded[part]
                    head = b"".join((node_bytes, _SCOPES[scope], long_bytes(part), parts, segment_bytes))
                    value = b"".join((b"\2@", digest, head, position, last))
                    changes.append((index, partition, key, value))
            decoded.clear()
        if schema:
            break
    return DecodedBatch(changes, p, mutations, notes, problems, broken, schema, unknown)


def replicated(payload: bytes, variable: list[tuple[int, int, bytes]]) -> bytes:
    """Return a mutation as each replica could have logged it: with other bytes in its `variable` parts.

    The digest is of that. Of version 9 the flags and the epochs go: replicas may differ in both, as each serialises a
    large mutation anew, with the schema that it has; and a node that is not upgraded yet writes neither. A row estimate
    is that of a node that serialises anew: the coordinator's counts rows which a deletion of the same mutation hides,
    and which are not written.
    """
    pieces: list[bytes] = []
    start = 0
    for first, end, other in variable:
        pieces.append(payload[start:first])
        pieces.append(other)
        start = end
    pieces.append(payload[start:])
    return b"".join(pieces)


def mutation(
    d: bytes,
    version: int,
    plans: dict[bytes, TablePlan],
    decoded: list[DecodedChange],
    notes: list[str],
    variable: list[tuple[int, int, bytes]],
) -> int:
    """Walk a mutation; what it changes goes to `decoded`, reasons for skipping to `notes`. `variable`, which is cleared
    first, gets what replicas may log differently, as (offset, end, the bytes to take the digest of).

    Returns _SCHEMA if it is of the schema, _HIDDEN if something in it can't be reached, else 0.
    Raises UnknownSchema, and Corrupt or IndexError for bytes outside the grammar.
    """
    raw = d
    flagged = version >= _FLAGGED
    p = 0
    variable.clear()
    if flagged:
        p = 1
        variable.append((0, p, b""))
    updates = d[p]
    p += 1
    if updates > 127:
        updates, p = vint(d, p - 1)
    if updates == 0:
        raise Corrupt("a mutation without updates")
    met = 0
    while updates:
        updates -= 1
        if len(d) - p < 17:
            raise Corrupt("an update that is cut off")
        table = raw[p : p + 16]
        plan = plans.get(table)
        if plan is None:
            raise UnknownSchema(table)
        start = p
        p += 16
        if flagged:
            variable.append((p, p + _SIZES[d[p]], b""))
            p += _SIZES[d[p]]
        if plan.index < 0:
            if not plan.is_known:
                # Without its schema its end can't be found.
                notes.append("unknown_table")
                return _HIDDEN if updates else met
            if plan.view:
                return met
            if plan.schema:
                met = _SCHEMA
            elif plan.reason:
                notes.append(plan.reason)
            if updates == 0 and not decoded:
                return met
        p = update(d, start, p, plan, decoded, notes, variable)
    if p != len(d):
        raise Corrupt(f"{len(d) - p} bytes after a mutation")
    return met


def update(
    d: bytes,
    start: int,
    p: int,
    plan: TablePlan,
    decoded: list[DecodedChange],
    notes: list[str],
    variable: list[tuple[int, int, bytes]],
) -> int:
    """Walk the update whose table id is at `start` and whose key at `p`; returns the offset after it."""
    size = d[p]
    p += 1
    if size > 127 or size > len(d) - p:
        size, p = length(d, p - 1)
    raw = d
    partition = raw[p : p + size]
    p += size
    flags = d[p]
    p += 1
    if flags & 1:
        return p
    low, p = vint(d, p)
    low += _TIMESTAMP_EPOCH
    low_deletion, p = vint(d, p)
    low_deletion += _DELETION_EPOCH
    first_ttl = p
    p += _SIZES[d[p]]
    statics: tuple[Column, ...] = ()
    of_statics = b""
    if flags & 8:
        header = columns(d, p, plan, start)
        p += len(header[0])
        statics = header[1]
        of_statics = header[2]
    header = columns(d, p, plan, start)
    p += len(header[0])
    regulars = header[1]
    lows = b""
    if plan.cells:
        low_ttl, _ = vint(d, first_ttl)
        lows = b"".join((long_bytes(wrapped(low)), long_bytes(wrapped(low_deletion)), long_bytes(wrapped(low_ttl))))

    emits = plan.index >= 0
    prefix = b""
    first = len(decoded)
    empty: list[bytes] = [] if len(plan.partition) > 1 else _NONE_EMPTY
    if emits:
        try:
            prefix = partition_key(partition, plan, empty)
        except (ValueError, IndexError):
            notes.append("malformed_key")
            plan.malformed += 1
            emits = False
    if flags & 4:
        row_start = p
        newest, p = deletion(d, p, low)
        if emits:
            last = tail(newest, _NEVER, _GONE, _NEVER)
            if plan.cells:
                last += cells(plan, header[2], lows, b"", raw[row_start:p])
            decoded.append((plan.index, partition, prefix + bytes(len(plan.clustering)), _PARTITION, last))
    if flags & 8:
        row_flags = d[p]
        if row_flags & 131 != 128 or not d[p + 1] & 1:
            raise Corrupt("a static row that is none")
        row_start = p + 2
        newest, expires, effect, expired, p = row(d, row_start, row_flags, low, low_deletion, statics)
        if emits:
            last = tail(newest, expires, effect, expired)
            if plan.cells:
                last += cells(plan, of_statics, lows, raw[row_start - 2 : row_start - 1], raw[row_start:p])
            decoded.append((plan.index, partition, prefix + bytes(len(plan.clustering)), _STATIC, last))
    estimate = rows = 0
    before_estimate = p
    if flags & 16:
        estimate, p = vint(d, p)
    values: list[bytes | None] = []
    opened: list[tuple[bytes, int]] | None = None
    while True:
        row_flags = d[p]
        p += 1
        if row_flags & 1:
            if opened:
                raise Corrupt("a range that is not closed")
            if flags & 16 and estimate != rows:
                variable.append((before_estimate, before_estimate + _SIZES[d[before_estimate]], vint_bytes(rows)))
            if empty:
                for i in range(first, len(decoded)):
                    index, partition, key, scope, last = decoded[i]
                    decoded[i] = (index, partition, b"".join((key, *empty)), scope, last)
            return p
        if row_flags & 2:
            if opened is None:
                opened = []
            ranges: list[bytes] = []
            p = marker(d, p, plan, low, opened, ranges)
            if ranges and emits:
                last = ranges[0]
                if plan.cells:
                    last += cells(plan, header[2], lows, b"", ranges[1])
                decoded.append((plan.index, partition, prefix + bytes(len(plan.clustering)), _RANGE, last))
            continue
        if row_flags & 128:
            if d[p] & 1:
                raise Corrupt("a static row among the others")
            p += 1
        rows += 1
        values.clear()
        p = clustering(d, p, plan, len(plan.clustering), values)
        row_start = p
        newest, expires, effect, expired, p = row(d, p, row_flags, low, low_deletion, regulars)
        if emits:
            last = tail(newest, expires, effect, expired)
            if plan.cells:
                last += cells(plan, header[2], lows, _BYTES[row_flags], raw[row_start:p])
            try:
                key = clustering_key(prefix, values, plan)
            except (ValueError, IndexError):
                notes.append("malformed_key")
                plan.malformed += 1
                continue
            decoded.append((plan.index, partition, key, _ROW, last))


def columns(d: bytes, p: int, plan: TablePlan, start: int) -> Header:
    """Return the columns' header at `p`: its bytes and the codes of its columns.

    A table's updates name the same few lists of columns, and a header has its own length in it: so one that was
    met is known by its bytes. Raises Unknown with the table id at `start`.
    """
    headers = plan.headers
    for i in range(len(headers)):
        header_met = headers[i]
        if d.startswith(header_met[0], p):
            if i:
                headers[i] = headers[i - 1]
                headers[i - 1] = header_met
            return header_met
    raw = d
    first = p
    count, p = vint(d, p)
    named: list[Column] = []
    names: list[bytes] = []
    while count:
        count -= 1
        size, p = length(d, p)
        name = raw[p : p + size]
        p += size
        names.append(name)
        column = plan.columns.get(name)
        if column is None:
            raise UnknownSchema(d[start : start + 16], name)
        if column[0] == _NO_COLUMN:
            raise Corrupt(f"a column that the table never had: {name!r}")
        named.append(column)
    if len(named) > len(plan.columns):
        raise Corrupt("more columns than the table has")
    header = (raw[first:p], tuple(named), plan.describe(names) if plan.cells else b"")
    if len(headers) == _HEADERS:
        headers.pop()
    headers.append(header)
    return header


def row(
    d: bytes, p: int, flags: int, low: int, low_deletion: int, columns: tuple[Column, ...]
) -> tuple[int, int, int, int, int]:
    """Walk a row after its clustering; returns its newest timestamp, earliest expiry, effect, latest expiry
    and the offset after it.

    A row whose cells have several timestamps has no effect: an event has one timestamp. Older deletions of whole
    columns don't count: INSERT writes them a µs earlier.
    """
    newest = _NONE
    first = _NONE
    several = False
    expires = _NEVER
    expired = 0
    effect = 0
    gone = _NEVER
    if flags & 4:
        delta = d[p]
        p += 1
        if delta > 127:
            delta, p = vint(d, p - 1)
        newest = first = wrapped(low + delta)
        effect = _WRITES_ROW | _LIVE
        if flags & 8:
            p += _SIZES[d[p]]
            delta, p = vint(d, p)
            expires = gone = (low_deletion + delta) & 0xFFFFFFFF
        expired = gone
    if flags & 16:
        time, p = deletion(d, p, low)
        effect |= _GONE
        if first == _NONE:
            first = time
        several = time != first
        if time > newest:
            newest = time
    if not flags & 32:
        columns, p = subset(d, p, columns)
    for column in columns:
        code, bit = column
        cells = 1
        effect |= bit
        if code == _COMPLEX:
            if flags & 64:
                time, p = deletion(d, p, low)
                if time != _NONE:
                    effect |= _DELETES
                if time > newest:
                    newest = time
            cells = d[p]
            p += 1
            if cells > 127:
                cells, p = vint(d, p - 1)
        while cells:
            cells -= 1
            cell = d[p]
            p += 1
            if not cell & 8:
                delta, p = vint(d, p)
                time = wrapped(low + delta)
                if first == _NONE:
                    first = time
                elif time != first:
                    several = True
                if time > newest:
                    newest = time
            until = gone if cell & 16 else _NEVER
            if cell & 3 and not cell & 16:
                delta, p = vint(d, p)
                if cell & 2:
                    until = (low_deletion + delta) & 0xFFFFFFFF
                    if until < expires:
                        expires = until
                    p += _SIZES[d[p]]
            if cell & 1:
                effect |= _DELETES
            else:
                effect |= _LIVE
                if until > expired:
                    expired = until
            if code == _COMPLEX:
                size = d[p]
                p += 1
                if size > 127:
                    size, p = length(d, p - 1)
                p += size
            if cell & 4:
                continue
            if code > 0:
                p += code
            elif code != _NO_BYTES:
                size = d[p]
                p += 1
                if size > 127:
                    size, p = length(d, p - 1)
                p += size
    if p > len(d):
        raise IndexError("index out of range")  # the caller takes these bytes by a pointer
    if several or (first != _NONE and newest != first):
        effect = 0
    return newest, expires, effect, expired if expired else _NEVER, p


def subset(d: bytes, p: int, columns: tuple[Column, ...]) -> tuple[tuple[Column, ...], int]:
    """Return those of the header's columns that a row has, and the offset after that list."""
    missing = d[p]
    p += 1
    if missing > 127:
        missing, p = vint(d, p - 1)
    if missing == 0:
        return columns, p
    count = len(columns)
    if count < 64:
        return tuple([columns[i] for i in range(count) if not missing >> i & 1]), p
    if missing > count:
        raise Corrupt("more columns missing than there are")
    named = set()
    few = count - missing < count // 2
    listed = count - missing if few else missing
    while listed:
        listed -= 1
        column, p = vint(d, p)
        named.add(column)
    return tuple([columns[i] for i in range(count) if (i in named) == few]), p


def marker(d: bytes, p: int, plan: TablePlan, low: int, opened: list[tuple[bytes, int]], ranges: list[bytes]) -> int:
    """Walk a bound of a range deletion after its flags; returns the offset after it.

    `opened` holds the start and timestamp of the range that is open; one that closes goes to `ranges`, as the last
    fields of an event's value, and its deletion as it stands in the log.
    """
    kind = d[p]
    size = d[p + 1] << 8 | d[p + 2]
    if kind > 7 or kind == 3 or kind == 4 or size > len(plan.clustering):
        raise Corrupt(f"a range's bound of kind {kind} with {size} values")
    values: list[bytes | None] = []
    p = clustering(d, p + 3, plan, size, values)
    if kind != 1 and kind != 7:
        # A boundary of two ranges closes the one before it, and has that one's deletion first.
        if not opened:
            raise Corrupt("a range that ends and did not start")
        start, time = opened.pop()
        deletion_start = p
        _, p = deletion(d, p, low)
        gone = d[deletion_start:p]
        end = bound(values, kind == 5 or kind == 6)
        ranges.append(b"".join((times(time, _NEVER), start, end, _OF_RANGE)))
        ranges.append(gone)
    if kind != 0 and kind != 6:
        if opened:
            raise Corrupt("a range that starts within another")
        time, p = deletion(d, p, low)
        opened.append((bound(values, kind == 1 or kind == 2), time))
    return p


def bound(values: list[bytes | None], inclusive: bool) -> bytes:
    """Return a range's bound as Avro; one without values is open."""
    if not values:
        return b"\0"
    out = [b"\2\1" if inclusive else b"\2\0", long_bytes(len(values))]
    for value in values:
        # A null is only known from tables with COMPACT STORAGE, and sorts as nothing does.
        data = value or b""
        out.append(long_bytes(len(data)))
        out.append(data)
    out.append(b"\0")
    return b"".join(out)


def clustering(d: bytes, p: int, plan: TablePlan, count: int, values: list[bytes | None] | None) -> int:
    """Walk `count` clustering values, which are appended to `values`; returns the offset after them."""
    raw = d
    bits = 0
    for i in range(count):
        if not i & 31:
            bits = d[p]
            p += 1
            if bits > 127:
                bits, p = vint(d, p - 1)
        absence = bits & 3
        bits >>= 2
        if absence:
            if values is not None:
                values.append(b"" if absence == 1 else None)
            continue
        part = plan.clustering[i]
        size = part.fixed
        if size == 0:
            size = d[p]
            p += 1
            if size > 127 or size > len(d) - p:
                size, p = length(d, p - 1)
        elif size > len(d) - p:
            raise Corrupt(f"a value of {size} bytes with {len(d) - p} left")
        if values is not None:
            values.append(raw[p : p + size])
        p += size
    return p


def deletion(d: bytes, p: int, low: int) -> tuple[int, int]:
    """Return the timestamp of a deletion, and the offset after it."""
    delta, p = vint(d, p)
    _, p = vint(d, p)  # it is there as a whole
    return wrapped(low + delta), p


def partition_key(data: bytes, plan: TablePlan, empty: list[bytes]) -> bytes:
    """Return a partition key as Avro. One column is its value; of several each is ushort length, bytes, 0.

    No bytes in place of a type that has no such value can't be encoded: a stand-in is. Its place goes to `empty`, to be
    appended to the key, as `KeyCodec` reads it.
    """
    if len(plan.partition) == 1:
        return avro(data, plan.partition[0])
    out: list[bytes] = []
    p = 0
    for part in plan.partition:
        size = data[p] << 8 | data[p + 1]
        if size > len(data) - p - 3 or data[p + 2 + size]:
            raise ValueError("not a composite key")
        if size == 0 and part.hollow:
            empty.append(long_bytes(len(out)))
            out.append(part.stand_in)
        else:
            out.append(avro(data[p + 2 : p + 2 + size], part))
        p += size + 3
    if p != len(data):
        raise ValueError("not a composite key")
    return b"".join(out)


def clustering_key(prefix: bytes, values: list[bytes | None], plan: TablePlan) -> bytes:
    """Return the key of a row as Avro: the partition key's `prefix`, then unions of null and the columns' types.

    No bytes in place of a type that has no such value are encoded as null: a row has no other null in its key.
    """
    if len(values) == 1 and values[0]:
        return prefix + b"\2" + avro(values[0], plan.clustering[0])
    out = [prefix]
    for i in range(len(values)):
        value = values[i]
        if value is None or (not value and plan.clustering[i].hollow):
            out.append(b"\0")
        else:
            out.append(b"\2")
            out.append(avro(value, plan.clustering[i]))
    return b"".join(out)


def avro(value: bytes, part: KeyColumn) -> bytes:
    """Return a key column's CQL bytes as Avro's, the same as `codec.to_avro.encoder` gives. Raises ValueError."""
    form = part.form
    if part.width and len(value) != part.width:
        raise ValueError(f"{len(value)} bytes where {part.width} are a value")
    if form == _SIZED:
        size = len(value)
        return (_LAST[size << 1] if size < 0x2000 else long_bytes(size)) + value
    if form == _INTEGER:
        return long_bytes(integer(value))
    if form == _UUID:
        text = value.hex()
        return f"H{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}".encode()
    if form == _REVERSED:
        return value[::-1]
    if form == _DATE:
        return long_bytes((integer(value) & 0xFFFFFFFF) - 0x80000000)
    if form == _BOOLEAN:
        return b"\1" if value[0] else b"\0"
    return part.encode(value)


def tail(newest: int, expires: int, effect: int, expired: int) -> bytes:
    """Return the last fields of an event's value: when it was written and expires, no bounds, its effect."""
    if expires == _NEVER and expired == _NEVER and newest != _NONE:
        return b"".join((b"\2", long_bytes(newest), b"\0\0\0", long_bytes(effect), b"\0"))
    first = times(newest, expires)
    if expired == _NEVER:
        return b"".join((first, b"\0\0", long_bytes(effect), b"\0"))
    return b"".join((first, b"\0\0", long_bytes(effect), b"\2", long_bytes(expired)))


def cells(plan: TablePlan, columns: bytes, lows: bytes, flags: bytes, data: bytes) -> bytes:
    """Return the fields `origin` and `cells` of an event's value: bytes of the log, and what is needed to read them."""
    return b"".join((b"\0\2", plan.cells, columns, lows, long_bytes(len(flags) + len(data)), flags, data))


def times(newest: int, expires: int) -> bytes:
    """Return when it was written, and when its first cell expires."""
    written = b"\0" if newest == _NONE else b"\2" + long_bytes(newest)
    if expires == _NEVER:
        return written + b"\0"
    return b"".join((written, b"\2", long_bytes(expires)))


def long_bytes(value: int) -> bytes:
    """Return an Avro int or long: zigzag, seven bits a byte, low ones first."""
    zigzag = (value << 1) ^ (value >> 63)
    if zigzag < 0x4000:
        return _LAST[zigzag]
    if _compiled:
        raw = _SCRATCH
        size = 0
        while zigzag > 0x7F:
            raw[size] = zigzag & 0x7F | 0x80
            zigzag >>= 7
            size += 1
        raw[size] = zigzag
        return raw[: size + 1]  # type: ignore[return-value] # in C it is a pointer, and a slice of it is bytes
    if zigzag < 0x10000000:
        return _PAIRS[zigzag & 0x3FFF] + _LAST[zigzag >> 14]
    return _PAIRS[zigzag & 0x3FFF] + _PAIRS[zigzag >> 14 & 0x3FFF] + long_rest(zigzag >> 28)


@lru_cache(64)
def long_rest(high_bits: int) -> bytes:
    """Return the bytes after the first 28 bits of a long: for times they stay the same for minutes."""
    out = []
    while high_bits > 0x3FFF:
        out.append(_PAIRS[high_bits & 0x3FFF])
        high_bits >>= 14
    out.append(_LAST[high_bits])
    return b"".join(out)


def vint(d: bytes, p: int) -> tuple[int, int]:
    """Return the vint at `p` and the offset after it."""
    first = d[p]
    p += 1
    if first < 0x80:
        return first, p
    if _compiled:
        size = 1
        while size < 8 and first & 0x80 >> size:
            size += 1
        value = first & 0x7F >> size
        while size:
            size -= 1
            value = value << 8 | d[p]
            p += 1
        return value, p
    size = 8 - (first ^ 0xFF).bit_length()
    if size > len(d) - p:
        raise IndexError("index out of range")
    return (first & 0x7F >> size) << 8 * size | int.from_bytes(d[p : p + size], "big"), p + size


def length(d: bytes, p: int) -> tuple[int, int]:
    """Return the vint at `p`, a number of bytes that are there, and the offset after it."""
    value = d[p]
    if value < 0x80:
        p += 1
    else:
        value, p = vint(d, p)
    if value > len(d) - p:
        raise Corrupt(f"a length of {value} with {len(d) - p} bytes left")
    return value, p


def wrapped(value: int) -> int:
    """Return a sum of unsigned numbers as a signed one of 64 bits."""
    if _compiled:
        return value
    value &= 0xFFFFFFFFFFFFFFFF
    return value - 0x10000000000000000 if value >> 63 else value


def integer(value: bytes) -> int:
    """Return a signed number of at most 8 bytes."""
    if _compiled:
        number = 0
        for i in range(len(value)):
            number = number << 8 | value[i]
        shift = 64 - 8 * len(value)
        return number << shift >> shift
    return int.from_bytes(value, "big", signed=True)


def u32(d: bytes, p: int) -> int:
    """Return the unsigned int at `p`, which the caller knows to be there."""
    if _compiled:
        number = d[p]
        for i in range(1, 4):
            number = number << 8 | d[p + i]
        return number
    return int.from_bytes(d[p : p + 4], "big")
