"""The slots of the MD5 cache: plain and compiled find and write the same."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import twice
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.gate import cache

SOURCE = Path(cache.__file__).with_name("_slots.py")
HEAD, SETS = 5, 2
PLAIN = twice.plain(SOURCE)
names = st.integers(0, 40).map(lambda n: bytes([n % 3] * 8) + bytes([n] * 8))
steps = st.lists(
    st.tuples(names, st.sampled_from(["report", "mark", "look", "keep", "forget"]), st.integers(0, 63)), max_size=60
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return twice.compiled(SOURCE, tmp_path_factory)


def run(module: ModuleType, steps_taken: list[tuple[bytes, str, int]]) -> object:
    """What is known after each step, and the bytes in the end."""
    with pytest.MonkeyPatch.context() as patch:
        now = 1_000_000.0
        patch.setattr(module.time, "time", lambda: now)
        data = bytearray(HEAD + SETS * module.SET_BYTES)
        slots, answers = module.Slots(data, HEAD, 20.0), []
        for name, step, n in steps_taken:
            now += 1
            if step == "report":
                slots.report(name, slots.look(name), 1 << n)
            elif step == "mark":
                slots.mark([name], n)
            elif step in ("keep", "forget"):
                getattr(slots, step)()
            entry = slots.look(name)
            answers.append((entry.nodes, entry.flags, entry.offset, slots.slot(name), slots.oldest(name)))
        slots.release()
        return answers, bytes(data)


@given(steps)
def test_plain_and_compiled_slots_do_the_same(compiled: ModuleType, steps_taken: list[tuple[bytes, str, int]]) -> None:
    assert run(PLAIN, steps_taken) == run(compiled, steps_taken)


def test_a_name_across_two_slots_is_not_found(compiled: ModuleType) -> None:
    """Its bytes are there, and no slot begins with them."""
    name = bytes(range(1, 17))
    for module in (PLAIN, compiled):
        data = bytearray(module.SET_BYTES)
        data[8:24] = name
        assert module.Slots(data, 0, 20.0).slot(name) == -1
        data[64:80] = name
        assert module.Slots(data, 0, 20.0).slot(name) == 64
