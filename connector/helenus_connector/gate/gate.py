"""The gate of a table drops copies of changes, and has changes wait for reports. `interfaces.gate` has the contract.

    gate=one             a change is admitted with its first report (`_report_policy.FirstReport`)
    gate=local_quorum    with the report that completes it (`_level_reports.LevelReports`)

Copies of a confirmed change are dropped. Copies of a change that is published but not confirmed are admitted and marked
as published: the resolver lets them wait with their key.
"""

from __future__ import annotations

from collections.abc import Iterable

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate._gate_batch import ChangeGateBatch
from helenus_connector.gate._level_reports import LevelReports
from helenus_connector.gate._replica_counts import ReplicaCounts
from helenus_connector.gate._report_policy import FirstReport, ReportPolicy
from helenus_connector.gate.cache import BY_AGE, CONFIRMED, PUBLISHED, Caches
from helenus_connector.gate.replicas import Replicas
from helenus_connector.interfaces.gate import NOTHING_WAITS, GateWaits, Intake
from helenus_schemas.codec.key import Key, KeyCodec


class ChangeGate:
    """The gate of one table in one process, at the level of its `settings`; its `caches` are shared by the host's
    processes.
    """

    def __init__(self, replicas: Replicas, caches: Caches, settings: ConnectorSettings) -> None:
        self._replicas = replicas
        self._caches = caches
        self._settings = settings
        self._replica_counts: ReplicaCounts | None = None

    def begin_batch(self, codec: KeyCodec, made_at: float, waits: GateWaits = NOTHING_WAITS) -> ChangeGateBatch:
        intake = Intake()
        policy: ReportPolicy
        if self._settings.gate == "one":
            policy = FirstReport(intake)
        else:
            policy = LevelReports(self._settings, self._replicas, self._caches, codec, waits, intake)
        self._caches.begin()
        self._replica_counts = ReplicaCounts(self._replicas, self._caches, codec)
        return ChangeGateBatch(self._caches, codec, made_at, waits.overdue, intake, policy)

    def count_replicas(self, topic: str, partition: int, values: Key, change: bytes) -> int:
        assert self._replica_counts is not None
        return self._replica_counts.count(topic, partition, values, change)

    def mark(
        self, topic: str, partition: int, changes: Iterable[bytes], is_confirmed: bool, by_age: bool = False
    ) -> None:
        flags = PUBLISHED
        if is_confirmed:
            flags |= CONFIRMED | BY_AGE if by_age else CONFIRMED
        self._caches.cache_for(topic, partition).mark(changes, flags)

    def close(self) -> None:
        self._caches.close()
