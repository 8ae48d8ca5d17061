"""The smallest plan that still fails: delta debugging over faults, then statements halved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from bench.chaos.plan import Plan

Item = TypeVar("Item")
IsFailing = Callable[[Plan], bool]


def shrink(plan: Plan, is_failing: IsFailing) -> Plan:
    """Return a plan that fails too, with no fault that it can do without, and statements halved as often as it fails.

    `is_failing` runs a plan; the given one is known to fail.
    """
    faults = fewest(plan.faults, lambda faults: is_failing(plan.less(plan.statements, faults)))
    plan = plan.less(plan.statements, faults)
    while len(plan.statements) > 1:
        middle = len(plan.statements) // 2
        halves = (plan.statements[:middle], plan.statements[middle:])
        smaller = next((h for h in halves if is_failing(plan.less(h, plan.faults))), None)
        if smaller is None:
            break
        plan = plan.less(smaller, plan.faults)
    return plan


def fewest(items: Sequence[Item], is_failing: Callable[[Sequence[Item]], bool]) -> Sequence[Item]:
    """Return a part of `items` that fails, and none of whose items can be left out (Zeller's ddmin)."""
    if not items or is_failing([]):
        return []
    parts = 2
    while len(items) >= 2:
        size = -(-len(items) // parts)
        chunks = [items[i : i + size] for i in range(0, len(items), size)]
        smaller = next((chunk for chunk in chunks if is_failing(chunk)), None)
        if smaller is not None:
            items, parts = smaller, 2
            continue
        # Of two parts each complement is the other part, which did not fail.
        complements = [[*items[: i * size], *items[(i + 1) * size :]] for i in range(len(chunks))] if parts > 2 else []
        smaller = next((complement for complement in complements if is_failing(complement)), None)
        if smaller is not None:
            items, parts = smaller, max(parts - 1, 2)
        elif parts >= len(items):
            break
        else:
            parts = min(len(items), 2 * parts)
    return items
