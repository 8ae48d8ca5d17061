"""What a stage tells a trace of its batch, and the trace that most batches have: none."""

from __future__ import annotations

from typing import Protocol

from helenus_connector.pipeline._table_version import TableVersions


class StageTrace(Protocol):
    """Follows one batch through a stage. Its thread calls this a few times, and never for an event."""

    def end_step(self, name: str) -> None:
        """Note that a step ends now: `gate`, `publish` (resolve, shape and append, which take turns) or `flush`."""
        ...

    def traced_versions(self, versions: TableVersions) -> TableVersions:
        """Return the versions that the batch's records are made by."""
        ...


class _Untraced:
    """A trace without spans."""

    def end_step(self, name: str) -> None: ...

    def traced_versions(self, versions: TableVersions) -> TableVersions:
        return versions


UNTRACED: StageTrace = _Untraced()
