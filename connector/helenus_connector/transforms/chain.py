"""The chain of a connector's transforms: applies each, in the order of `transforms`, to a record."""

from __future__ import annotations

from collections.abc import Mapping

from helenus_connector.connect_data.record import ConnectRecord
from helenus_connector.transforms.contract import TransformError
from helenus_connector.transforms.properties import make_steps
from helenus_schemas.errors import Action, HelenusError


class TransformChain:
    """Transforms records. Raises ValueError for properties that `check_properties` reports."""

    def __init__(self, transforms: Mapping[str, str], predicates: Mapping[str, str]) -> None:
        self._steps = make_steps(transforms, predicates)

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        """Return what the transforms make of a record; None if one of them drops it. Raises TransformError, which names
        the transform.
        """
        changed: ConnectRecord | None = record
        for step in self._steps:
            try:
                if step.applies_to(changed):
                    assert changed is not None
                    changed = step.transform.apply(changed)
            except HelenusError as error:
                if error.action is Action.RETRY:
                    raise
                raise TransformError(f"transforms.{step.name}: {error.what}") from error
            except Exception as error:  # a class of a user's own may raise anything
                reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
                raise TransformError(f"transforms.{step.name}: {reason}") from error
            if changed is None:
                return None
        if changed is not None and changed.partition != record.partition:
            raise TransformError("a transform changed the partition, which keeps the order per key")
        return changed
