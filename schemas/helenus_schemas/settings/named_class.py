"""What a setting names as `package.module:Name`: a class, or a function, of a user's own, for one of the plug points.

All plug points are named and loaded by this module; docs/plug-points.md lists them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def is_class_name(text: str) -> bool:
    """Return whether a text has the form `package.module:Name`. It imports nothing."""
    return _NAME.fullmatch(text) is not None


def import_named(name: str) -> object:
    """Import a module, and return what of it is named. Raises ValueError, which says why that can't be done."""
    module, _, attribute = name.partition(":")
    try:
        imported = import_module(module)
    except Exception as error:  # whatever the module raises when it is imported
        raise ValueError(f"{module} can't be imported: {error}") from None
    try:
        return getattr(imported, attribute)
    except AttributeError:
        raise ValueError(f"{module} has no {attribute}") from None


def import_class(name: str, contract: str, methods: Sequence[str], attributes: Sequence[str] = ()) -> type:
    """Import a class with these methods and attributes: those of the `contract`, a Protocol. Raises ValueError.

    Any class of any module can be named, and over REST too: what does not have the contract is not called.
    """
    module, _, class_name = name.partition(":")
    members = [*attributes, *methods]
    try:
        named = import_named(name)
    except ValueError as error:
        if "can't be imported" in str(error):
            raise
        named = None
    missing = [method for method in methods if not callable(getattr(named, method, None))]
    missing += [attribute for attribute in attributes if not hasattr(named, attribute)]
    if not isinstance(named, type) or missing:
        listed = f"{', '.join(members[:-1])} and {members[-1]}" if members[1:] else members[0]
        raise ValueError(f"{module} has no class {class_name} with {listed}, as {contract} has them")
    return named
