"""Quarantined segments put back to be read again: all of each, from its start, once more.

The agent has to be stopped, because the positions are its own. Events of the part that could be read the first time
arrive twice, which every consumer has to handle anyway.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from helenus_agent.commitlog.segment_name import parse_name
from helenus_agent.segments.transfer import move
from helenus_agent.state import StateDirectory, owned, quarantine, unreadable_error
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.failpoints import reach


def list_quarantined(state: Path) -> list[Path]:
    """Return the segments in quarantine, the oldest first. Raises HelenusError(STATE) where this user can't see
    them.
    """
    directory = quarantine(state)
    try:
        paths = [path for path in directory.iterdir() if path.suffix == ".log"]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable_error("what is in quarantine", directory, error) from None
    named_paths = ((parse_name(path.name), path) for path in paths)
    return [path for name, path in sorted((name, path) for name, path in named_paths if name)]


def reprocess(state_directory: Path, raw: Path, names: Collection[str] = ()) -> list[Path]:
    """Put these segments, or all, back into cdc_raw; return where they are now.

    `names` are ids or file names. Raises HelenusError: STATE if an agent runs, CONFIG for a name that is not in
    quarantine (then nothing is moved), TRANSFER_FAILED or CDC_DIRECTORY if one can't be moved. Killed at any point,
    a segment is in quarantine or to be read again, and a second call does the rest.
    """
    state = StateDirectory(state_directory)
    try:
        with owned(raw):
            return _reprocess(state, raw, names)
    finally:
        state.close()


def _reprocess(state: StateDirectory, raw: Path, names: Collection[str]) -> list[Path]:
    paths = {str((parse_name(path.name) or (0, 0))[1]): path for path in list_quarantined(state.directory)}
    wanted = {name: Path(name).name.removesuffix(".log").rpartition("-")[2] for name in names}
    unknown = [name for name, number in wanted.items() if number not in paths]
    if unknown:
        where = quarantine(state.directory)
        message = f"not in quarantine: {', '.join(unknown)}; there is {', '.join(paths) or 'none'}"
        raise HelenusError(Kind.CONFIG, message, str(where), "name segments that are there, or none for all")
    positions = state.load()
    chosen = [number for number in paths if not wanted or number in wanted.values()]
    for number in chosen:
        # The state says that it is processed, or up to which offset: without this nothing would be read.
        positions.reopen(int(number))
    if chosen and positions.host_id:
        state.save(positions)
    reach("reprocess.after-save")
    return [move(paths[number], raw) for number in chosen]
