"""Find the class of a schema store that a connector's file names as `package.module:Class`."""

from __future__ import annotations

from typing import cast

from helenus_connector.schema_store.contract import StoreFactory
from helenus_schemas.settings.named_class import import_class, is_class_name

BUILT_IN = ("confluent", "topic")
"""The stores that are no classes of a user's own."""
_METHODS = ("register", "latest", "schema", "close")


def check_store(name: str) -> str:
    """Return the name of a store. Raises ValueError for one that is none; imports nothing."""
    if name not in BUILT_IN and not is_class_name(name):
        raise ValueError("give confluent, topic, or a class of your own as package.module:Class")
    return name


def find_store_class(name: str) -> StoreFactory:
    """Return a class of a user's own, which is imported. Raises ValueError."""
    return cast("StoreFactory", import_class(name, "AvroSchemaStore", _METHODS))
