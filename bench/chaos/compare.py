"""What is wrong with a topic: rows that differ from the table's, records out of order, repeated, or missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from helenus_schemas.cql.table import Table
from helenus_stack.compare import Key, Row, record_key
from helenus_stack.records import Record

REMEMBERED_MS = 9 * 60_000
"""A record may come again if its change is older: `cache.expire.after.ms`, less what a batch takes."""
_SEQ = "seq"


@dataclass(frozen=True)
class Finding:
    """A difference of a mode's topic, of a key if it has one."""

    mode: str
    kind: str
    """lost, stale, ghost; order, misplaced; repeated; missing; or what else is wrong."""
    text: str
    key: Key | None = None

    def __str__(self) -> str:
        return f"{self.mode}: {self.kind}: {self.text}"


def compare_rows(mode: str, of_topic: Mapping[Key, Row], of_table: Mapping[Key, Row]) -> list[Finding]:
    """Return a finding for each key whose row on the topic is not the table's."""
    findings = []
    for key in sorted(of_topic.keys() | of_table.keys(), key=repr):
        ours, theirs = of_topic.get(key), of_table.get(key)
        if ours == theirs:
            continue
        kind = "lost" if ours is None else "ghost" if theirs is None else "stale"
        names = sorted({name for row in (ours, theirs) for name in row or ()})
        differing = [name for name in names if (ours or {}).get(name) != (theirs or {}).get(name)]
        ours, theirs = ({n: row.get(n) for n in differing} if row is not None else None for row in (ours, theirs))
        findings.append(Finding(mode, kind, f"{key}: the topic has {ours}, the table {theirs}", key))
    return findings


def expired_keys(table: Table, records: Iterable[Record], now_s: float) -> set[Key]:
    """Return the keys whose last record says that a cell of it has expired since: without `state` none follows."""
    last = {record_key(table, record): record for record in records if record.headers.get("scope") != b"table"}
    return {key for key, record in last.items() if 0 < int(record.headers.get("expires", b"0")) <= now_s}


def find_disorder(mode: str, table: Table, records: Iterable[Record]) -> list[Finding]:
    """Return where a key's record shows an older row than one before it, and keys in two topic partitions.

    The table's column `seq` only grows, but for a TRUNCATE, which what was on its way may outlast.
    """
    findings: list[Finding] = []
    newest: dict[Key, int] = {}
    places: dict[Key, int] = {}
    for record in records:
        if record.headers.get("scope") == b"table":
            newest = {key: seq for key, seq in newest.items() if places[key] != record.partition}
            continue
        key = record_key(table, record)
        if places.setdefault(key, record.partition) != record.partition:
            findings.append(Finding(mode, "misplaced", f"{key} in partition {record.partition}, {places[key]}", key))
        seq = (record.value or {}).get(_SEQ)
        if seq is None or None in key:
            continue
        if seq < newest.get(key, seq):
            text = f"{key} has seq {seq} after {newest[key]}, at {record.partition}:{record.offset}"
            findings.append(Finding(mode, "order", text, key))
        newest[key] = max(seq, newest.get(key, seq))
    return findings


def without_repeated_batches(records: Iterable[Record]) -> list[Record]:
    """Return records without those of a batch that was done again after a kill, as docs/guarantees.md has it of
    `state=rows`: the same ones in the same order, up to the last one, by the table's schema of then. One of them alone
    is no such batch.
    """
    by_partition: dict[int, list[Record]] = {}
    for record in records:
        by_partition.setdefault(record.partition, []).append(record)
    return [record for of_partition in by_partition.values() for record in _without_repeated_runs(of_partition)]


def _without_repeated_runs(records: Sequence[Record]) -> list[Record]:
    """Return the records of a partition, of which each run that repeats all from some record up to here is left out."""
    indexes: list[int] = []
    index = 0
    while index < len(records):
        length = next(
            (
                len(indexes) - start
                for start in range(len(indexes))
                if index + len(indexes) - start <= len(records)
                and all(_is_again(records[i], records[index + n]) for n, i in enumerate(indexes[start:]))
            ),
            0,
        )
        if not length:
            indexes.append(index)
        index += length or 1
    return [records[i] for i in indexes]


def _is_again(record: Record, other: Record) -> bool:
    """Return whether two records say the same, but for columns that only one of their schemas has."""
    if record.key != other.key:  # as most are, of all pairs of records
        return False
    names = (record.headers.keys() | other.headers.keys()) - {"schema_id"}
    has_same_headers = all(record.headers.get(name) == other.headers.get(name) for name in names)
    return has_same_headers and _agrees(record.value, other.value)


def _agrees(value: Any, other: Any) -> bool:
    if isinstance(value, dict) and isinstance(other, dict):
        return all(_agrees(value[name], other[name]) for name in value.keys() & other.keys())
    return bool(value == other)


def find_repeats(mode: str, table: Table, records: Iterable[Record], relogged: Collection[str] = ()) -> list[Finding]:
    """Return the records that come again for the same change of the same key, but for those of digests in `relogged`: a
    node has logged them more than once, as of a hint that it got twice, which docs/guarantees.md has as a limit.
    """
    findings: list[Finding] = []
    first: dict[tuple[object, ...], Record] = {}
    for record in records:
        digest, scope = record.headers.get("digest"), record.headers.get("scope")
        if digest is None or scope == b"table" or digest.decode() in relogged:
            continue
        key = record_key(table, record)
        # A mutation may delete a row and write it: two changes, where the row is a partition. A tombstone follows each
        # envelope of a delete.
        change = (key, digest, scope, *map(record.headers.get, ("op", "start", "end")), record.value is None)
        before = first.setdefault(change, record)
        if before is not record and record.timestamp - before.timestamp < REMEMBERED_MS:
            text = f"{key}: change {digest.decode()[:8]} at {record.partition}:{record.offset} was at {before.offset}"
            findings.append(Finding(mode, "repeated", text, key))
    return findings


def find_missing(mode: str, times: Mapping[int, str], records: Iterable[Record]) -> list[Finding]:
    """Return the acknowledged changes that no record has, by write time in µs; `times` has their statements."""
    shown = {int(r.value["source"]["ts_us"]) for r in records if r.value is not None and r.value.get("source")}
    return [Finding(mode, "missing", f"no record of {cql}") for time, cql in sorted(times.items()) if time not in shown]


def in_order_of_modes(findings: Sequence[Finding]) -> list[Finding]:
    """Return them by mode and kind, for who reads them."""
    return sorted(findings, key=lambda finding: (finding.mode, finding.kind, finding.text))
