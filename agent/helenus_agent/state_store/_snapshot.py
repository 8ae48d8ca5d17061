"""What a row of `agent_states` holds: positions and tables as they lie in the state directory, compressed.

`positions`: JSON of `Positions` and of the node's disk; `tables`: the text of tables.json. Both are deflated by zlib,
whose checksum finds what is damaged. `FORMAT` is written beside them: another one is not read.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

from helenus_agent.positions import Positions

FORMAT = 1
_LIMIT = 1 << 28  # bytes that a blob of a row may have once it is inflated: 1,000 tables take 2 MB


@dataclass(frozen=True)
class Disk:
    """By what the disk of a node is recognised: when its system.local got its host id, µs since the epoch, 0 if that is
    not known; and the inode of cdc_raw.
    """

    born: int
    inode: int

    @classmethod
    def of_node(cls, born: int | None, raw: Path) -> Disk:
        """Return the one of a node that has this cdc_raw."""
        try:
            return cls(born or 0, raw.stat().st_ino)
        except OSError:
            return cls(born or 0, 0)


@dataclass(frozen=True)
class StateSnapshot:
    """What the state directory held at one time: positions and disk as JSON, and the text of tables.json, empty if
    there is none. `version` is that of the positions. `is_urgent`: something in it is in no log.
    """

    version: int
    positions: str
    tables: str
    is_urgent: bool = False

    @classmethod
    def of_positions(cls, positions: Positions, disk: Disk, tables: str, is_urgent: bool = False) -> StateSnapshot:
        """Return a snapshot of these."""
        content = {"positions": positions.as_json(), "disk": asdict(disk)}
        return cls(positions.version, json.dumps(content, default=str), tables, is_urgent)

    def read(self) -> tuple[Positions, Disk]:
        """Return the positions and the disk. Raises ValueError, LookupError, TypeError or AttributeError."""
        content = json.loads(self.positions)
        disk = content["disk"]
        return Positions.from_json(content["positions"]), Disk(int(disk["born"]), int(disk["inode"]))


def deflate(text: str) -> bytes:
    """Return a text as a blob."""
    return zlib.compress(text.encode(), 6)


def inflate(blob: bytes | None) -> str:
    """Return the reverse of `deflate`, empty of None. Raises ValueError for what is damaged or too large."""
    if blob is None:
        return ""
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(blob, _LIMIT)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not inflater.eof:
        raise ValueError(f"it is not complete, or has more than {_LIMIT} bytes")
    return content.decode()
