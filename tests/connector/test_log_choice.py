"""What is loaded only where Pulsar is used."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from helenus_connector.log import choice

LOADED = re.findall(r'_pulsar_module\("(\w+)"\)', Path(choice.__file__).read_text())


def test_what_is_loaded_by_its_name_is_there() -> None:
    assert len(LOADED) > 4
    assert [name for name in LOADED if find_spec(f"helenus_connector.log.{name}") is None] == []


def test_a_module_of_ours_that_is_missing_is_no_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError):
        choice._pulsar_module("of_nothing")
