"""Find the class of a schema store that a connector's file names as `package.module:Class`."""

from __future__ import annotations

import re
from importlib import import_module
from typing import cast

from helenus_connector.schema_store.contract import StoreFactory

BUILT_IN = ("confluent", "topic")
"""The stores that are no classes of a user's own."""
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_METHODS = ("register", "latest", "schema", "close")


def check_store(name: str) -> str:
    """Return the name of a store. Raises ValueError for one that is none; imports nothing."""
    if name not in BUILT_IN and not _CLASS.fullmatch(name):
        raise ValueError("give confluent, topic, or a class of your own as package.module:Class")
    return name


def find_store_class(name: str) -> StoreFactory:
    """Return a class of a user's own, which is imported. Raises ValueError."""
    module, _, class_name = name.partition(":")
    try:
        store_class = getattr(import_module(module), class_name, None)
    except Exception as error:  # whatever the module raises when it is imported
        raise ValueError(f"{module} can't be imported: {error}") from None
    # Any class can be named: what does not have the contract is not called.
    missing = [method for method in _METHODS if not callable(getattr(store_class, method, None))]
    if not isinstance(store_class, type) or missing:
        raise ValueError(f"{module} has no class {class_name} with {', '.join(_METHODS)}, as AvroSchemaStore has them")
    return cast("StoreFactory", store_class)
