"""A gate, and the resolver `reread` after it, without reads: what a batch would read, and what a read confirms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate.cache import Caches
from helenus_connector.gate.gate import ChangeGate
from helenus_connector.interfaces.event import Event, Gap
from helenus_connector.interfaces.gate import GateBatch
from helenus_connector.reread._key_read import KeyRead
from helenus_connector.reread.resolver import RereadResolver
from helenus_connector.unconfirmed.unconfirmed_key import Name, UnconfirmedKey
from helenus_connector.unconfirmed.unproven_changes import UnprovenChange, unpack_changes
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.errors import HelenusError


@dataclass
class Batch:
    """What became of a batch's events."""

    read: int
    confirmed: int
    outdated: int
    gaps: list[Gap]
    poison: list[tuple[Event, HelenusError]]
    key_reads: dict[Name, KeyRead]
    waiting: dict[Name, UnconfirmedKey]
    gone: list[UnconfirmedKey]

    @property
    def awaited(self) -> dict[Name, dict[bytes, UnprovenChange]]:
        return {name: unpack_changes(waits.awaited) for name, waits in self.waiting.items()}


class Gated:
    def __init__(self, settings: ConnectorSettings, replicas: Any, directory: Path) -> None:
        self.caches = Caches(directory, settings.cache_max_capacity, settings.cache_expire_after_ms / 1000)
        self.gate = ChangeGate(replicas, self.caches, settings)
        self.gate_batch: GateBatch
        budget: Any = None
        self.resolver = RereadResolver(settings, None, self.gate, replicas, self.caches, budget, lambda: 1)

    def admit(
        self, events: Iterable[Event], due_keys: Sequence[UnconfirmedKey], codec: KeyCodec, made_at: float = 0.0
    ) -> Batch:
        table: Any = SimpleNamespace(clustering=())
        reader: Any = SimpleNamespace(table=table)
        self.resolver._reader = reader
        self.gate_batch = self.gate.begin_batch(codec, made_at)
        intake = self.gate_batch.intake
        changes = self.gate_batch.admit(events)
        self.batch = self.resolver.begin_batch(table, codec, changes, due_keys, made_at)
        key_reads = self.batch._key_reads
        return Batch(
            intake.read,
            intake.confirmed,
            intake.outdated,
            intake.gaps,
            intake.poison,
            key_reads.by_name,
            key_reads.waiting,
            key_reads.outdated,
        )

    def unproven(self, key_read: KeyRead) -> Mapping[bytes, UnprovenChange]:
        key_read.proof = self.batch._evidence.prove(key_read)
        return key_read.proof.unproven

    def mark(self, key_read: KeyRead) -> None:
        """The record of a work is published."""
        proof = key_read.proof
        for change in key_read.awaited:
            self.gate.mark(
                key_read.topic, key_read.partition, [change], change not in proof.unproven, change in proof.by_age
            )

    def save(self) -> None:
        self.gate_batch.save()

    def close(self) -> None:
        self.gate.close()
