"""The decoder twice: the plain file, and what Cython makes of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "agent" / "helenus_agent"


def load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def plain() -> ModuleType:
    """decoder.py as it is."""
    return load("plain.decoder", PACKAGE / "decoder.py")


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """decoder.py compiled just now."""
    pytest.importorskip("Cython")
    build = load("hatch_build", ROOT / "hatch_build.py")
    path = build.compile_decoder(PACKAGE, tmp_path_factory.mktemp("compiled"))
    if path is None:
        pytest.skip("there is no C compiler")
    return load("compiled.decoder", path)


@pytest.fixture(scope="session", params=["plain", "compiled"])
def decoder(request: pytest.FixtureRequest) -> ModuleType:
    """Each test with this runs with both."""
    module: ModuleType = request.getfixturevalue(request.param)
    return module
