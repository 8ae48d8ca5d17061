"""The note of who leads a group, in its topic."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

KEY = "helenus-leader"


@dataclass(frozen=True)
class Leader:
    """A worker that leads, or led: its `worker_id` and `url`. Its `number` is higher than that of all leaders before,
    and no other one has its `term`.
    """

    worker_id: str
    url: str
    number: int
    term: str

    def to_value(self) -> dict[str, object]:
        """Return the note as a JSON object."""
        return asdict(self)

    @classmethod
    def from_value(cls, value: object) -> Leader | None:
        """Return the note that a JSON object is; None if it is none."""
        match value:
            case {"worker_id": str(worker_id), "url": str(url), "number": int(number), "term": str(term)}:
                return cls(worker_id, url, number, term)
        return None

    @classmethod
    def from_record(cls, value: bytes | None) -> Leader | None:
        """Return the note in a record; None if it is none."""
        try:
            return cls.from_value(json.loads(value or b"null"))
        except (ValueError, RecursionError):
            return None
