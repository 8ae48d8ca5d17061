"""A converter of a user's own, `package.module:Class`, whose errors are ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from helenus_connector.connect_data.converter import RecordConverter
from helenus_connector.connect_data.schema import ConnectSchema
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.named_class import import_class


class NamedConverter:
    """Calls a user's converter. Raises ValueError if there is none of this name, or it can't be made."""

    def __init__(self, class_name: str, is_key: bool, properties: Mapping[str, str]) -> None:
        factory: Any = import_class(class_name, "RecordConverter", ("to_bytes",))
        try:
            self._converter: RecordConverter = factory(dict(properties), is_key)
        except Exception as error:  # whatever the class raises
            raise ValueError(f"it can't be made: {type(error).__name__}: {error}") from None
        self._name = class_name

    def to_bytes(self, topic: str, schema: ConnectSchema | None, value: Any) -> bytes | None:
        """Convert as `RecordConverter` says."""
        try:
            data = self._converter.to_bytes(topic, schema, value)
        except HelenusError:
            raise
        except OSError as error:
            raise HelenusError(Kind.REGISTRY_UNREACHABLE, f"{self._name}: {error}", topic) from None
        except Exception as error:
            raise HelenusError(Kind.POISON_EVENT, f"{self._name}: {type(error).__name__}: {error}", topic) from error
        # A record without value deletes a row: a value that is there must not become one.
        if (data is None) != (value is None) or (data is not None and not isinstance(data, bytes)):
            problem = f"{self._name} returned {type(data).__name__} for a {type(value).__name__}"
            raise HelenusError(Kind.POISON_EVENT, problem, topic)
        return data
