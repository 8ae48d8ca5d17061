"""The chart as Helm renders it: manifests of a values file, and what it says of values that are wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from chart import wheels

ROOT = Path(__file__).resolve().parents[2]
HELM = ROOT / "compose" / "helm"
CHART = HELM / "helenus"
VALUES = sorted((HELM / "values").glob("*.yaml"))
Manifest = dict[str, Any]


def read(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text()))


def ask(requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Answers of render.py."""
    packages = wheels.directory()
    environment = {**os.environ, "PYTHONPATH": str(packages), "HELM_C_LIB": str(packages / wheels.LIBRARY)}
    command = [sys.executable, str(Path(__file__).with_name("render.py"))]
    whole = [{"chart": str(CHART), "lint": False, **request} for request in requests]
    process = subprocess.run(
        command, input=json.dumps(whole), env=environment, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
    return list(json.loads(process.stdout))


def documents(text: str) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(text) if document]


@cache
def _of_files() -> dict[str, list[Manifest]]:
    answers = ask([{"values": read(path)} for path in VALUES])
    return {path.stem: _parsed(answer) for path, answer in zip(VALUES, answers, strict=True)}


def of_file(name: str) -> list[Manifest]:
    """The manifests of values/NAME.yaml."""
    return _of_files()[name]


def of_values(values: Mapping[str, Any]) -> list[Manifest]:
    """The manifests of some values."""
    return _parsed(ask([{"values": values}])[0])


def error(values: Mapping[str, Any]) -> str:
    """What Helm says of values that are wrong; empty if they are right."""
    return str(ask([{"values": values}])[0].get("error", ""))


def _parsed(answer: Mapping[str, Any]) -> list[Manifest]:
    assert "manifests" in answer, answer
    texts = [text for name, text in answer["manifests"].items() if name.endswith(".yaml")]
    return [manifest for text in texts for manifest in documents(text)]


def pick(manifests: Sequence[Manifest], kind: str, name: str | None = None) -> Manifest:
    """The one manifest of this kind, and name."""
    (manifest,) = [m for m in manifests if m["kind"] == kind and name in (None, m["metadata"]["name"])]
    return manifest
