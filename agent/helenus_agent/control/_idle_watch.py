"""What an agent does while publishing is disabled: it watches how cdc_raw fills, and takes nothing away."""

from __future__ import annotations

import os
import time
from pathlib import Path

from helenus_agent import metrics
from helenus_agent.commitlog.segment_name import parse_name
from helenus_agent.node.cassandra import Node
from helenus_agent.segments.headroom import Headroom


class IdleWatch:
    """Shows the size of cdc_raw in the metrics, and warns as it nears its limit."""

    def __init__(self) -> None:
        self._headroom = Headroom()
        self._oldest: float | None = None

    def look(self, directory: Path | None, node: Node | None) -> None:
        """Look at cdc_raw, if it is known where it is."""
        metrics.OLDEST.set_function(self._oldest_age)
        if node is not None:
            self._headroom.set(node.raw_limit, node.blocks_writes)
            metrics.RAW_LIMIT.set(node.raw_limit or 0)
        if directory is None:
            return
        try:
            with os.scandir(directory) as entries:
                stats = {entry.name: entry.stat() for entry in entries}
        except OSError:
            return  # a segment was deleted meanwhile, or the node has none yet
        segments = {name: stat for name, stat in stats.items() if parse_name(name)}
        indexed = [stat for name, stat in segments.items() if name.replace(".log", "_cdc.idx") in stats]
        self._oldest = min((stat.st_mtime for stat in indexed), default=None)
        size = sum(stat.st_size for stat in segments.values())
        metrics.RAW_BYTES.set(size)
        metrics.PENDING.set(len(segments))
        self._headroom.watch(size)

    def _oldest_age(self) -> float:
        return 0.0 if self._oldest is None else max(0.0, time.time() - self._oldest)
