"""Masks of columns compared with Debezium's own classes, on a JVM."""

from __future__ import annotations

from base64 import b64decode, b64encode
from pathlib import Path

import pytest
from schemas.java import Program

from helenus_connector.config.column_masks import ALGORITHMS, column_masks
from helenus_connector.shape.selection._masks import mask_function

pytestmark = pytest.mark.integration

SOURCE = Path(__file__).with_name("DebeziumMasks.java")
TEXTS = ["", "bill@example.com", "ö\0\U0001f600 x", "\ud7ff\ue000", "x" * 65_535, "é" * 40_000]
SALT = "salt. of é"


def test_masks_are_debeziums(tmp_path: Path) -> None:
    cases: list[tuple[str, str, str]] = []
    for text in TEXTS:
        cases += [
            (version, algorithm, text) for version in ("v1", "v2") for algorithm in ALGORITHMS if algorithm != "SHA1"
        ]
        cases += [("chars", "5", text), ("truncate", "2", text), ("truncate", "40000", text)]
    lines = [
        f"{kind} {argument} {b64encode(SALT.encode()).decode()} {b64encode(text.encode()).decode()}\n"
        for kind, argument, text in cases
    ]
    answers = Program(tmp_path, SOURCE, "connect").run(lines="".join(lines)).splitlines()
    for (kind, argument, text), answer in zip(cases, answers, strict=True):
        if kind == "truncate":
            (mask,) = column_masks({}, {f"to.{argument}.chars": "k.t.c"})
        elif kind == "chars":
            (mask,) = column_masks({f"with.{argument}.chars": "k.t.c"}, {})
        else:
            prefix = "hash.v2." if kind == "v2" else "hash."
            (mask,) = column_masks({f"{prefix}{argument}.with.salt.{SALT}": "k.t.c"}, {})
        wanted = b64decode(answer)
        assert mask_function(mask)(text.encode()) == wanted, (kind, argument, text[:20])
