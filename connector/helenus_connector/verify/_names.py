"""Keys as text, for people."""

from __future__ import annotations

from helenus_connector.gate.event_content import decode_key
from helenus_connector.verify._job import VerifyJob
from helenus_schemas.codec import to_json
from helenus_schemas.codec.key import KeyCodec


class KeyNames:
    """Spells keys as JSON objects of their columns."""

    def __init__(self, job: VerifyJob) -> None:
        keys = job.table.primary_key
        self._codec = KeyCodec(job.table)
        self._n = len(job.table.partition_key)
        names, types = [c.name for c in keys], [c.type for c in keys]
        self._row = to_json.objects(names, types, keys=len(keys))
        self._partition = to_json.objects(names[: self._n], types[: self._n], keys=self._n)

    def spell_key(self, name: bytes, static: bool) -> str:
        """Spell an event's key; of a partition's `static` columns its partition key. Keys of another form stay as
        they are.
        """
        try:
            values = decode_key(self._codec, bytes(name))
            return self._partition(values[: self._n]) if static else self._row(values)
        except ValueError:
            text = bytes(name[:200]).decode(errors="backslashreplace")
            return text if text.isprintable() else bytes(name[:200]).hex()
