"""Connectors that come from what stands for a file each, and may come and go while the worker runs: data sources."""

from __future__ import annotations

from collections.abc import Mapping

from helenus_connector.control.connectors import DELETED, Connectors


def put_source(connectors: Connectors, name: str, properties: Mapping[str, str]) -> bool:
    """Make the connector of a source, or give it these properties if the source has others now. Return whether that
    was done: what was changed or deleted over REST since stays so. Raises ConfigError, and HelenusError as
    `Connectors.save` does.
    """
    with connectors.lock:
        existing, former = connectors.all().get(name), connectors.set_aside.get(name)
        if existing is not None and existing.file == properties:
            return False
        is_deleted = existing is None and former is not None and former["state"] == DELETED
        if is_deleted and former is not None and former["file"] == properties:
            return False
        connectors.put(name, properties, file=dict(properties), saves=False)
        connectors.all()[name].file = dict(properties)
        connectors.save()
        return True


def remove_source(connectors: Connectors, name: str) -> bool:
    """Delete the connector of a source that is gone: a later one of its name makes it again. Return False if there is
    none. Raises HelenusError as `Connectors.save` does.
    """
    with connectors.lock:
        is_there = name in connectors.names()
        if is_there:
            connectors.delete(name)
        is_set_aside = connectors.set_aside.pop(name, None) is not None
        if is_set_aside:
            connectors.save()
        return is_there or is_set_aside
