"""The check of a mode's topic against its table, the statements that Cassandra acknowledged, and `verify`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench.chaos.cluster import ChaosCluster
from bench.chaos.compare import (
    Finding,
    compare_rows,
    expired_keys,
    find_disorder,
    find_missing,
    find_repeats,
    in_order_of_modes,
    without_repeated_batches,
)
from bench.chaos.history import ExecutedStatement, key_story
from bench.chaos.merge import MergedRows
from bench.chaos.modes import Mode
from helenus_connector.log.events import Message
from helenus_schemas.cql.table import Table
from helenus_schemas.event.cells import decode_cells
from helenus_schemas.event.wire import decode
from helenus_stack.compare import Key, Row, last_records, rows
from helenus_stack.readers import Reader
from helenus_stack.records import Record

STORIES = 5
"""So many keys' histories of a topic are shown."""
_AGAIN_S = 20.0
_VERIFY_S = 300.0


@dataclass
class TopicCheck:
    """What was found of a mode's topic."""

    records: int = 0
    expired: int = 0
    unsure: int = 0
    relogged: int = 0
    findings: list[Finding] = field(default_factory=list)
    stories: list[tuple[Finding, list[str]]] = field(default_factory=list)


class _AtAll:
    """A session that reads at ALL, as `helenus_stack.compare.rows` wants one."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def execute(self, cql: str) -> Any:
        return self._session.execute(cql, execution_profile="all", timeout=60)


def check_topic(
    cluster: ChaosCluster, topics: Reader, mode: Mode, statements: Sequence[ExecutedStatement], verifies: bool
) -> TopicCheck:
    """Compare a topic with its table, once and before anything else reads at ALL: read repair would mend it."""
    check = TopicCheck()
    table = cluster.table(mode)
    records = read_records(topics, mode)
    events = list(topics.messages(f"events-{mode.topic_table}"))
    of_table = rows(_AtAll(cluster.session), table)
    check.records = len(records)
    check.findings += _row_findings(check, mode, table, records, events, of_table)
    if check.findings:
        # Was it only late, or mended by the read?
        time.sleep(_AGAIN_S)
        later = _row_findings(TopicCheck(), mode, table, read_records(topics, mode), events, of_table)
        healed = {finding.key for finding in check.findings} - {finding.key for finding in later}
        check.findings = [
            Finding(f.mode, f.kind, f.text + (f" (right {_AGAIN_S:.0f} s later)" if f.key in healed else ""), f.key)
            for f in check.findings
        ]
    if mode.is_once:
        repeats = find_repeats(mode.name, table, records, relogged_digests(events))
        check.relogged = len(find_repeats(mode.name, table, records)) - len(repeats)
        check.findings += repeats
    if mode.is_change:
        check.findings += find_missing(mode.name, _tracked(cluster, statements), records)
    else:
        in_batches = without_repeated_batches(records) if mode.repeats_batches else records
        check.findings += find_disorder(mode.name, table, in_batches)
        if verifies:
            check.findings += _verify(cluster, mode)
    check.findings = in_order_of_modes(check.findings)
    keyed = {finding.key: finding for finding in reversed(check.findings) if finding.key is not None}
    for key, finding in list(keyed.items())[:STORIES]:
        check.stories.append((finding, key_story(table, key, statements, events, records)))
    check.stories += [(finding, []) for finding in check.findings if finding.key is None][:STORIES]
    return check


def read_records(topics: Reader, mode: Mode) -> list[Record]:
    """Return the records of a mode's data topic, partition by partition, as a `read_committed` reader gets them."""
    return [topics.record(message) for message in topics.messages(f"data-{mode.topic_table}")]


def _row_findings(
    check: TopicCheck, mode: Mode, table: Table, records: list[Record], events: list[Message], of_table: dict[Key, Row]
) -> list[Finding]:
    if mode.is_change:
        merged = MergedRows(table, mixed_digests(events))
        merged.take(records)
        check.unsure += len(merged.unsure)
        findings = compare_rows(mode.name, merged.shown(), of_table)
        return [finding for finding in findings if finding.key not in merged.unsure]
    findings = compare_rows(mode.name, last_records(table, records), of_table)
    if mode.has_state:
        differing = {finding.key for finding in findings}
        of_naive = compare_rows(mode.name, last_records(table, without_markers(records)), of_table)
        return findings + [
            Finding(f.mode, f.kind, "without markers: " + f.text, f.key) for f in of_naive if f.key not in differing
        ]
    expired = expired_keys(table, records, time.time())
    check.expired += sum(finding.key in expired for finding in findings)
    return [finding for finding in findings if finding.key not in expired]


def without_markers(records: Iterable[Record]) -> list[Record]:
    """Return records as a sink takes them that knows no markers: each is a row, of the key that it has."""
    return [replace(r, headers={}) for r in records if r.headers.get("scope") != b"table"]


def mixed_digests(events: Iterable[Message]) -> set[str]:
    """Return the digests of changes whose cells have several write times, by more than the µs of a batch."""
    mixed = set()
    for event in events:
        change = decode(event.value() or b"")
        if change.cells is None or change.digest is None:
            continue
        cells = decode_cells(change.cells, change.scope)
        times = {cell.write_time for cell in cells.cells}
        times |= {deletion.write_time + 1 for deletion in cells.deletions.values()}
        times |= {part.write_time for part in (cells.liveness, cells.deletion) if part is not None}
        if times and max(times) - min(times) > 2:
            mixed.add(change.digest)
    return mixed


def relogged_digests(events: Iterable[Message]) -> set[str]:
    """Return the digests of mutations that some node has in its commit log more than once."""
    first: dict[tuple[str | None, str], tuple[int, int]] = {}
    relogged = set()
    for event in events:
        change = decode(event.value() or b"")
        position = change.segment, change.position
        if change.digest and first.setdefault((change.node, change.digest), position) != position:
            relogged.add(change.digest)
    return relogged


def _tracked(cluster: ChaosCluster, statements: Iterable[ExecutedStatement]) -> dict[int, str]:
    return {
        s.write_time: s.cql
        for s in statements
        if s.is_acknowledged
        and s.planned.statement.is_tracked
        and cluster.reaches_agents(s.planned.level, s.planned.data_center)
    }


def _verify(cluster: ChaosCluster, mode: Mode) -> list[Finding]:
    """Return what `verify` finds, in its own words."""
    worker = cluster.leader(mode)
    if worker is None:
        return [Finding(mode.name, "verify", "no worker leads")]
    path = f"/connectors/{mode.connector}/verifications"
    worker.post(path, {"patience": 10})
    limit = time.monotonic() + _VERIFY_S
    while (result := worker.get_json(path)["verifications"][-1])["state"] in ("WAITING", "RUNNING"):
        if time.monotonic() > limit:
            return [Finding(mode.name, "verify", "does not end")]
        time.sleep(1)
    differences = result.get("differences", result)
    return [] if not result.get("differences") else [Finding(mode.name, "verify", json.dumps(differences)[:800])]
