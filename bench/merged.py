"""What `state=rows` costs its Python processes, without servers and without Spark, in one process.

    python -m bench merged [--rows 20000] [--batch 5000] [--rounds 3] [--tables narrow] [--profile]

Rows are inserted, and then written again in each round: once by their bytes, as ordinary mutations are merged, and once
decoded, as all others, in turns. The store is a dictionary. CPU s per million changes, best round, of each part:
merging with the store's pages, packing the changes and unpacking them, and making and appending their records.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.written import NODES, ROWS, Ids, Nothing, T, table_of, value
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import MergedChange
from helenus_connector.pipeline import _table_version as version
from helenus_connector.pipeline.merged_stage import MergedStage
from helenus_connector.query.garbage import freeze
from helenus_connector.state.rows import _merge
from helenus_connector.state.rows._change_pack import pack_changes, unpack_changes
from helenus_connector.state.rows._merge import TopicPartitionMerger
from helenus_connector.state.store.pages import Pages
from helenus_connector.testing.cassandra import Host, MemorySession
from helenus_connector.testing.store import DictStore
from helenus_schemas.codec.avro_long import long_bytes
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table

REGISTRY = {"value.converter.schema.registry.url": "http://127.0.0.1:1"}


class DecodingMerger:
    """Leaves all changes to the merger that decodes rows."""

    nodes = frozenset[bytes]()
    copies = unchanged = 0

    def __init__(self, *_: Any) -> None:
        pass

    def follow(self, _: bool) -> None:
        pass

    def merge_run(self, _: Any, start: int) -> tuple[int, list[Any]]:
        return start, []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=5_000, help="changes of a batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tables", nargs="*", default=["narrow"])
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; CPU s per million changes")
    for name in options.tables:
        table = table_of(name)
        stores = {"by bytes": DictStore(), "decoded": DictStore()}
        best: dict[str, list[float]] = {}
        for turn in range(options.rounds + 1):
            batches = list(changes_of(table, options.rows, options.batch, turn))
            for way, store in stores.items():
                profile = cProfile.Profile() if options.profile and turn == options.rounds else None
                spent = measure(table, batches, store, T // 10**6 + turn * 60, way == "by bytes", profile)
                if turn:
                    pairs = zip(best.get(way, spent), spent, strict=True)
                    best[way] = [min(pair) for pair in pairs]
                if profile is not None:
                    print(f"{name}, {way}")
                    pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        for way, spent in best.items():
            each = [seconds / options.rows * 1e6 for seconds in spent]
            stored_bytes = sum(len(key) + len(value) for key, value in stores[way].values.items()) / options.rows
            parts = "merge {:.1f}, pack and unpack {:.1f}, publish {:.1f}".format(*each)
            print(f"{name}, {way}: {sum(each):.1f} ({parts}); {stored_bytes:.0f} bytes a row in the store", flush=True)


def changes_of(table: Table, count: int, batch: int, turn: int) -> Iterator[list[Event]]:
    """Batches of events that insert so many rows, each turn later than the one before."""
    codec, names = KeyCodec(table), [column.name for column in table.values]
    events: list[Event] = []
    for n in range(count):
        key, cells = ROWS[table.name](table, n)
        written = T + turn * 60 * 10**6 + n
        cells = cells.replace(long_bytes(T), long_bytes(written), 1)
        data = value(cells, NODES[0], turn * count + n, names)
        events.append(Event(f"events-bench.{table.name}", 0, n, written // 1000, codec.encode(key), data))
        if len(events) == batch:
            yield events
            events = []
    if events:
        yield events


def measure(
    table: Table,
    batches: Sequence[Sequence[Event]],
    store: DictStore,
    now: int,
    by_bytes: bool,
    profile: cProfile.Profile | None,
) -> list[float]:
    """Return the CPU seconds of each part."""
    codec, spent = KeyCodec(table), [0.0, 0.0, 0.0]
    with tempfile.TemporaryDirectory() as directory:
        stage = stage_of(table, Path(directory))
        freeze((table.name, now, by_bytes))  # as Spark's workers do
        for batch in batches:
            if profile is not None:
                profile.enable()
            stage.begin(table)
            began = time.process_time()
            pages: Any = Pages(store)
            with nullcontext() if by_bytes else patch.object(_merge, "OrdinaryMerger", DecodingMerger):
                merger = TopicPartitionMerger(table, codec, pages, 0, table.gc_grace_s)
            merged = list(merger.take(batch, now))
            pages.flush()
            merged_at = time.process_time()
            changes: list[MergedChange] = [c for pack in list(pack_changes(merged)) for c in unpack_changes(pack)]
            packed_at = time.process_time()
            stage.take_all(changes)
            ended = time.process_time()
            if profile is not None:
                profile.disable()
            assert stage.outcome.records == len(batch), stage.outcome
            for part, seconds in enumerate((merged_at - began, packed_at - merged_at, ended - packed_at)):
                spent[part] += seconds
    return spent


def stage_of(table: Table, directory: Path) -> MergedStage:
    """A stage that makes records in Avro, and forgets them."""
    properties = {
        "name": table.name,
        "keyspace": table.keyspace,
        "table": table.name,
        "state": "rows",
        "query.group": "rows",
        **REGISTRY,
    }
    version.read_definition = lambda session, settings, schema_state=None, request=None: (
        None if schema_state else (1, table)
    )  # type: ignore[assignment]
    session = MemorySession([Host(node) for node in NODES], {table.keyspace: 3})
    settings = ConnectorSettings.from_properties(properties, "bench")
    return MergedStage(settings, session, Nothing(), lambda *_: None, directory, Ids())


if __name__ == "__main__":
    main()
