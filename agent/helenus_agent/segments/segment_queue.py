"""Which segments there are, and what is to be read next.

Cassandra fills one segment after the other and has the next one ready. Its syncer goes from the oldest to the newest
and writes a sync marker into each that has new entries. So looking from the newest to the oldest, and then reading from
the oldest to the newest, never reads an entry before one that was written earlier. And a segment in which nothing new
is found after a newer one had some is closed, or nearly so: it is looked at again when its index says COMPLETED.

All of this holds for any number of the oldest segments as for all. So of a backlog only the oldest few are looked at,
and of each only so much at once; while there is more of one, nothing newer is read.

A segment with changes of CDC tables gets an index with the first flush and stays until it is taken away; the others
Cassandra deletes itself. Cassandra 3.11 shows a segment only when it is complete, and only one with such changes.

Since 4.0 a segment is a file in the commit log's own directory, linked into cdc_raw when it is made (but while cdc_raw
is full), and the node deletes its own name for it when it has no use for it any more. So where that directory can be
read, a segment that is there, not in cdc_raw and not fully processed was deleted by another program, and is read from
there. Ids are consecutive while a node runs; one that is in neither directory and never was in a listing
may have held changes, or not: it is counted as `unseen`.

Three modes say how soon an entry is read; all of them look at the files, and read all of a segment that is complete.

    idx     when the index covers it: it is on the node's disk, and no crash takes it back. Late by up to
            commitlog_sync_period; with commitlog_sync: batch the client, too, has waited for that.
    marker  when a sync marker covers it: every 100 ms in a plain segment. A crash of the machine (not of Cassandra) can
            take back what the disk did not have yet, on this replica: as it can with a write Cassandra acknowledged.
    eager   as soon as it is whole: an entry after the last marker counts if its CRCs are right, up to the first that
            is not. A crash of Cassandra alone can take it back too, since it replays only what a marker covers: then
            the segment ends before what was read (`Segment.read_unmarked`). A segment's first entries wait for its
            first marker, which shows that the older segments are all written; a change of the schema waits for its own,
            as the node logs it before it applies it.

Compressed segments reach the file at each sync, marker and all: there the three are nearly the same, and `eager` is
`marker`.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from helenus_agent import metrics
from helenus_agent.commitlog.segment import ReadMode, Segment
from helenus_agent.commitlog.segment_header import Corrupt
from helenus_agent.commitlog.segment_name import has_index, parse_name
from helenus_agent.commitlog.segment_source import read_index
from helenus_agent.positions import Positions
from helenus_agent.segments import gaps
from helenus_schemas.errors import HelenusError, Kind

_MAX_OPEN = 8  # segments with something to read that are looked at, and so many files are held open
_RESCAN_S = 10.0  # s after which closed segments are looked at again: with a clock set back, new ids are not higher
_MAX_ID_STEP = 1000  # ids that differ by less are of one run of the node: another one's begin at the ms of its start


def list_segment_ids(directory: Path) -> list[int]:
    """Return the ids of the segments in a directory. Raises HelenusError(CDC_DIRECTORY)."""
    try:
        return [parsed[1] for path in directory.iterdir() if (parsed := parse_name(path.name))]
    except OSError as error:
        raise HelenusError(Kind.CDC_DIRECTORY, f"cannot list: {error.strerror}", str(directory)) from None


class SegmentQueue:
    """The segments of a cdc_raw directory: `refresh` lists them, `next` says where there is something to read.

    `finished` are complete and read to their end; the caller clears it once their changes are acknowledged.
    `commit_log` is the node's commitlog_directory, None if it is not known. `unseen` counts segments that came and went
    between two listings.
    """

    def __init__(self, directory: Path, positions: Positions, mode: ReadMode = "marker") -> None:
        self.directory = directory
        self.commit_log: Path | None = None
        self._mode = mode
        self.finished: list[Segment] = []
        self.size = 0
        self.unseen = 0
        self._newest_on_node = 0
        self._has_listed = False
        self._rescanned_at = time.monotonic()
        self._positions = positions
        self._segments: dict[int, Segment] = {}
        self._watched: list[Segment] = []
        self._ready: deque[Segment] = deque()

    @property
    def mode(self) -> ReadMode:
        """Return how far live segments are read."""
        return self._mode

    @mode.setter
    def mode(self, mode: ReadMode) -> None:
        self._mode = mode
        for segment in (*self._segments.values(), *self.finished):
            segment.mode = mode

    @property
    def segments(self) -> list[Segment]:
        """Return all that are not finished, the oldest first."""
        return list(self._segments.values())

    @property
    def oldest(self) -> int:
        """Return the id of the oldest segment that is not finished, 0 if there is none."""
        return min(self._segments, default=0)

    @property
    def newest(self) -> int:
        """Return the highest id of a segment that may hold something by now.

        Cassandra 3.11 writes to segments that are not in cdc_raw yet. Where its own directory is not known either, it
        may be any segment of this run of the node: their ids begin at the ms of its start.
        """
        newest = max(self._segments, default=0)
        if self._newest_on_node:
            return max(newest, self._newest_on_node)
        if any(not segment.complete for segment in self._segments.values()):
            return newest
        return max(newest, time.time_ns() // 1_000_000)

    @property
    def waiting_since(self) -> float | None:
        """Return since when (s since the epoch) the oldest unread data waits; None if all is read."""
        return min((s.since for s in list(self._ready) if s.unread), default=None)

    def refresh(self) -> None:
        """List the directory: new segments, those that are complete now, those that vanished."""
        # First: what the node has by now is linked by the time of the second listing.
        node_segments = self._list_node_directory()
        try:
            with os.scandir(self.directory) as entries:
                listed = list(entries)
            stats = {e.name: e.stat() for e in listed if e.name.endswith(".log")}
        except FileNotFoundError:
            if not self.directory.is_dir():
                raise HelenusError(Kind.CDC_DIRECTORY, "the directory is gone", str(self.directory)) from None
            return  # a file went between listing and asking for its size: the next time
        except OSError as error:
            raise HelenusError(Kind.CDC_DIRECTORY, f"cannot list: {error.strerror}", str(self.directory)) from None
        names = {parsed[1]: name for name in stats if (parsed := parse_name(name))}
        linked = {number: self.directory / name for number, name in names.items()}
        present = linked | self._find_unlinked(node_segments, linked)
        for number in self._segments.keys() - present.keys():
            self._handle_vanished(self._segments[number])
        finished = {s.id for s in self.finished}
        for number in self._positions.segments.keys() - present.keys() - self._segments.keys() - finished:
            self._report_missing(number)
        for number in sorted(present.keys() - self._segments.keys() - finished):
            self._add_segment(number, present[number])
        indexes = {e.name for e in listed if e.name.endswith("_cdc.idx")}
        if not self._has_listed:
            self._has_listed = True
            self._remove_orphans(indexes, names.keys())
        newest = max([*node_segments, *linked], default=0)
        for number, path in present.items():
            if (segment := self._segments.get(number)) is not None:
                segment.path, segment.unlinked = path, number not in linked
                self._update_completion(segment, indexes, stats, newest)
        self._watched.sort(key=lambda s: s.id)
        if time.monotonic() - self._rescanned_at > _RESCAN_S:
            self._rescanned_at = time.monotonic()
            self._watched = self.segments
        self._note_ids(node_segments, linked)
        self.size = sum(stats[name].st_size for name in names.values())
        metrics.RAW_BYTES.set(self.size)
        metrics.PENDING.set(len(self._segments))

    def _remove_orphans(self, indexes: Iterable[str], segments: Container[int]) -> None:
        """Delete the indexes of removed segments: an agent that was killed between the two files left one."""
        processed = set(self._positions.done)
        for name in indexes:
            parsed = parse_name(name.replace("_cdc.idx", ".log"))
            if parsed and parsed[1] in processed and parsed[1] not in segments:
                with suppress(OSError):
                    (self.directory / name).unlink()

    def _update_completion(
        self, segment: Segment, indexes: Container[str], stats: Mapping[str, os.stat_result], newest: int
    ) -> None:
        """Set whether a segment is complete, by its index. Without one it is complete if it is blank, the node has
        deleted its own name for it, and there is a newer segment.
        """
        if segment.complete or segment.unlinked:
            return
        name = segment.path.name
        if name.replace(".log", "_cdc.idx") in indexes:
            if index := read_index(segment.path):
                segment.indexed = True
                segment.complete = index[1]
        elif stats[name].st_nlink == 1 and segment.id < newest and not segment.indexed:
            segment.complete = segment.is_blank()
        if segment.complete and segment not in self._watched:
            self._watched.append(segment)

    def written_positions(self) -> dict[int, int]:
        """Return how far each segment is known to be written, by its id, of those that are to be read next."""
        return {s.id: s.unread[-1].end for s in self._ready if s.unread and not s.unread[-1].live}

    def is_unlinked(self, segment: Segment) -> bool:
        """Return whether cdc_raw has no such segment now: it may have been linked since the last listing."""
        return not (self.directory / segment.path.name).exists()

    def next(self) -> Segment | None:
        """Return the segment to read from, None if there is nothing to read at the moment."""
        while self._ready and not self._ready[0].unread:
            self._ready.popleft()
        while not self._ready and self._find_ready():
            pass
        return self._ready[0] if self._ready else None

    def read(self, segment: Segment, max_bytes: int) -> tuple[bytes, int, bool]:
        """Read of a segment as `Segment.read`, and count it."""
        started = time.perf_counter()
        piece = segment.read(max_bytes)
        metrics.READ_SECONDS.inc(time.perf_counter() - started)
        metrics.READ_BYTES.inc(len(piece[0]))
        return piece

    def is_current(self) -> bool:
        """Return whether the log was read up to now, given that `next` finds nothing: it shows entries as they are
        written, and none waits for its marker, as a change of the schema does.
        """
        return self.mode == "eager" and not any(segment.is_held for segment in self._watched)

    def has_news(self) -> bool:
        """Return whether `next` may find more than it just did. It costs a read of some bytes for each segment looked
        at.
        """
        try:
            return bool(self._ready) or any(segment.has_news() for segment in self._watched)
        except OSError:
            return True

    def rewind(self) -> None:
        """Go back to what is acknowledged."""
        processed = self._positions.done
        for segment in self.finished:
            if segment.id not in processed:
                self._segments[segment.id] = segment
        self.finished = [segment for segment in self.finished if segment.id in processed]
        self._segments = dict(sorted(self._segments.items()))
        self._watched = self.segments
        self._ready.clear()
        for segment in self._watched:
            mark = self._positions.segments.get(segment.id)
            segment.rewind(mark.offset if mark else 0)
        for segment in self._watched[_MAX_OPEN:]:
            segment.close()

    def close(self) -> None:
        """Let go of all files."""
        for segment in (*self._segments.values(), *self.finished):
            segment.close()

    def _find_ready(self) -> bool:
        """Find what is to be read next; True if the oldest have nothing, but not all were looked at."""
        oldest, unlooked = self._split()
        newer_started = False
        ready: list[Segment] = []
        watched: list[Segment] = []
        for segment in reversed(oldest):
            has_data = self._look_at(segment)
            if has_data is None:
                self._handle_vanished(segment)
            elif not has_data and segment.complete and segment.is_stable:
                self._finish(segment)
            elif not has_data and newer_started and segment.is_stable:
                segment.close()
            else:
                watched.append(segment)
                if has_data:
                    if not segment.looked:
                        ready.clear()  # what is newer waits for the rest of this one
                    ready.append(segment)
                if len(watched) > _MAX_OPEN:
                    watched[-_MAX_OPEN - 1].close()
            newer_started = newer_started or segment.started
        watched.reverse()
        ready.reverse()
        self._watched = watched + unlooked
        self._ready.extend(ready[:_MAX_OPEN])
        return bool(unlooked) and not ready

    def _split(self) -> tuple[list[Segment], list[Segment]]:
        """Return the segments to look at now, until enough of them have, or may have, something to read; and the
        rest.
        """
        if len(self._watched) > _MAX_OPEN:
            unread = 0
            for count, segment in enumerate(self._watched, 1):
                unread += bool(segment.unread) or not segment.looked
                if unread == _MAX_OPEN:
                    return self._watched[:count], self._watched[count:]
        return self._watched, []

    def _finish(self, segment: Segment) -> None:
        """Move a segment to `finished`. It is held open, as the last few are: if it is deleted before all is
        acknowledged, it can be read again.
        """
        self.finished.append(segment)
        del self._segments[segment.id]
        if len(self.finished) > _MAX_OPEN:
            self.finished[-_MAX_OPEN - 1].close()

    def _look_at(self, segment: Segment) -> bool | None:
        """Return whether there is something to read; None if the file is gone."""
        try:
            return segment.look()
        except Corrupt as error:
            gaps.report_corrupt(segment, segment.position, str(error), segment.remaining_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise HelenusError(Kind.CDC_DIRECTORY, f"cannot read: {error.strerror}", str(segment.path)) from None
        return bool(segment.unread)

    def _list_node_directory(self) -> dict[int, Path]:
        """Return the segments in the node's own directory, if that can be read."""
        self._newest_on_node = 0
        if self.commit_log is None:
            return {}
        try:
            with os.scandir(self.commit_log) as entries:
                names = [entry.name for entry in entries]
        except OSError:
            return {}
        paths = {parsed[1]: self.commit_log / name for name in names if (parsed := parse_name(name))}
        self._newest_on_node = max(paths, default=0)
        return paths

    def _find_unlinked(self, node_segments: Mapping[int, Path], linked: Container[int]) -> dict[int, Path]:
        """Return those that the node has, that are to be read, and that are not in cdc_raw."""
        if not self._positions.listed:
            return {}  # this agent's first start: it reads what is in cdc_raw
        processed = {*self._positions.done, *(segment.id for segment in self.finished)}
        recorded = self._segments.keys() | self._positions.segments.keys()
        return {
            number: path
            for number, path in node_segments.items()
            if number not in linked and number not in processed and has_index(path)
            if number in recorded or number > self._positions.listed
        }

    def _note_ids(self, node_segments: Iterable[int], linked: Iterable[int]) -> None:
        """Remember how far ids were seen, and count those that were skipped."""
        last, numbers = self._positions.listed, sorted({*node_segments, *linked})
        for number in numbers if last else ():
            if last < number < last + _MAX_ID_STEP:
                self.unseen += number - last - 1
            last = max(last, number)
        self._positions.listed = max([last, *numbers])

    def _add_segment(self, number: int, path: Path) -> None:
        mark = self._positions.segments.get(number)
        segment = Segment(path, mark.offset if mark else 0, mark.bad if mark else False, self._mode)
        if number in self._positions.done:
            # It was not taken away before, or a restarted node has linked it again and is about to write its index.
            index = read_index(segment.path)
            if segment.complete or (index and index[1]):
                self.finished.append(segment)
            return
        self._segments[number] = segment
        self._watched.append(segment)

    def _report_missing(self, number: int) -> None:
        mark = self._positions.segments.pop(number)
        if mark.indexed:
            gaps.report_lost(self._positions, number, mark.offset, str(self.directory))

    def _handle_vanished(self, segment: Segment) -> None:
        if segment.is_open:
            # Held open it can be read to its end, and that is where nothing more will come.
            segment.complete = True
            return
        mark = self._positions.segments.get(segment.id)
        unacknowledged = segment.position > (mark.offset if mark else 0)
        self._forget(segment)
        if segment.indexed and (segment.unread or segment.bad or not segment.looked or unacknowledged):
            gaps.report_lost(self._positions, segment.id, segment.position, str(self.directory))

    def _forget(self, segment: Segment) -> None:
        del self._segments[segment.id]
        self._positions.segments.pop(segment.id, None)
        self._watched = [s for s in self._watched if s is not segment]
        self._ready = deque(s for s in self._ready if s is not segment)
