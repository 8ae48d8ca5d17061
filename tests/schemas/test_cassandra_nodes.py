"""Who the nodes are, as the driver has it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from helenus_schemas.service.cassandra import _CameUp


def test_after_a_node_came_up_the_driver_asks_who_the_nodes_are() -> None:
    """The driver itself does so only for an address that it does not know: on real nodes in test_gate_levels.py."""
    asked: list[tuple[float, Any, dict[str, object]]] = []
    ask = object()
    scheduler = SimpleNamespace(schedule=lambda seconds, what, **how: asked.append((seconds, what, how)))
    cluster = SimpleNamespace(
        scheduler=scheduler, control_connection=SimpleNamespace(refresh_node_list_and_token_map=ask)
    )
    listener = _CameUp(cluster)
    for call in (listener.on_down, listener.on_add, listener.on_remove):
        call("a node")
    assert asked == []
    listener.on_up("a node")
    assert asked == [(1.0, ask, {"force_token_rebuild": True}), (10.0, ask, {"force_token_rebuild": True})]
