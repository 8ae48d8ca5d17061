"""The gate's loop over events of our agents: plain and compiled admit the same, whatever comes between."""

from __future__ import annotations

import tempfile
import uuid
from dataclasses import asdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import twice
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate import _gate_batch
from helenus_connector.gate import cache as caches
from helenus_connector.gate.gate import ChangeGate
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.gate import GateWaits
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.event.change import Bound, Change, Effect, Origin, Scope
from helenus_schemas.event.wire import encode

SOURCE = Path(caches.__file__).with_name("_admission.py")
NODES = [f"{n}{n}111111-2222-3333-4444-555555555555" for n in range(3)] + ["no host id" + "x" * 26]
T = 1_700_000_000_000_000
PLAIN = twice.plain(SOURCE)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return twice.compiled(SOURCE, tmp_path_factory)


COLUMNS = Column("k", parse("int"), "partition_key", 0), Column("c", parse("int"), "clustering", 0)
CODEC, GROWING = (KeyCodec(Table("ks", "t", uuid.UUID(int=1), COLUMNS)) for _ in range(2))
GROWING.may_grow = True
KEYS = [CODEC.encode((bytes(3) + b"%c" % n, clustering)) for n in range(2) for clustering in (None, bytes(4))]


@st.composite
def events(draw: st.DrawFn) -> list[Event]:
    made = []
    for offset in range(draw(st.integers(0, 14))):
        key, partition = draw(st.sampled_from(KEYS)), draw(st.integers(0, 1))
        scopes = [Scope.ROW] * 8 + [Scope.STATIC, Scope.PARTITION, Scope.RANGE, Scope.TABLE, Scope.GAP]
        change = Change(
            draw(st.sampled_from(["a" * 32, "b" * 32, "c" * 32])),
            draw(st.sampled_from(NODES)),
            scope := draw(st.sampled_from(scopes)),
            segment=draw(st.integers(0, 2)),
            position=draw(st.integers(0, 4)),
            write_time=draw(st.sampled_from([None, T, T + 1])),
            expires_at=draw(st.sampled_from([None, 1_800_000_000])),
            start=Bound(True, (bytes(4),)) if scope is Scope.RANGE else None,
            effect=int(draw(st.sampled_from([Effect.LIVE, Effect.GONE, Effect.LIVE | Effect.ROW]))),
            origin=draw(st.sampled_from([Origin.LOG] * 6 + [Origin.SNAPSHOT])),
            cells=draw(st.sampled_from([None, None, b"cells"])),
        )
        if change.origin is not Origin.LOG:
            change = change._replace(digest=None, node=None)
        value: bytes | None = encode(change)
        odd = draw(st.integers(0, 30))
        if odd == 0:
            value = draw(st.sampled_from([None, b"", b"\2@", (value or b"")[:-1], encode(change)[:73]]))
        elif odd == 1:
            key = draw(st.sampled_from([b"", b"\1\2\3"]))
        made.append(Event("events", partition, offset, T // 1000, None if odd == 2 else key, value))
    return made


def replicas() -> Any:
    hosts = frozenset(NODES[:3])
    return SimpleNamespace(
        factors=lambda: {"dc": 3},
        data_center="dc",
        by_dc=lambda: {"dc": hosts},
        is_partial=lambda: True,
        are_all_read=lambda: False,
        nodes=lambda key: hosts,
        nodes_everywhere=lambda key: hosts,
    )


def run(module: ModuleType, level: str, codec: KeyCodec, batches: list[list[Event]], marked: list[int]) -> Any:
    """What each of some batches admits and leaves, and the caches in the end."""
    properties = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json", "gate": level}
    settings = ConnectorSettings.from_properties(properties, "test")
    seen: list[Any] = []
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_gate_batch, "Admission", module.Admission)
        patch.setattr(caches.time, "time", lambda: T / 1e6)  # one module for both, and the slots
        change_caches = caches.Caches(Path(directory), 1024, 1e6)
        gate = ChangeGate(replicas(), change_caches, settings)
        for batch, n in zip(batches, marked, strict=True):
            gate_batch = gate.begin_batch(codec, T / 1e6 - 1, GateWaits(room=400.0))
            admitted, intake = list(gate_batch.admit(batch)), gate_batch.intake
            seen.append(
                [
                    (a.event, a.change, a.key, a.values, a.id, a.copies, a.is_published, a.nodes, a.scope)
                    for a in admitted
                ]
            )
            seen.append(asdict(intake) | {"poison": [(event, str(error)) for event, error in intake.poison]})
            for a in admitted[: n % 8]:
                gate.mark("events", a.event.partition, [a.id] if a.id else [], n >= 8, n >= 16)
            gate_batch.save()
        gate.close()
        files = {path.name: path.read_bytes() for path in sorted(Path(directory).iterdir())}
    return seen, files


@pytest.mark.parametrize("level", ["one", "local_quorum"])
@pytest.mark.parametrize("codec", [CODEC, GROWING], ids=["stable", "grows"])
@given(given_batches=st.lists(st.tuples(events(), st.integers(0, 23)), min_size=1, max_size=3))
def test_both_admit_the_same(
    compiled: ModuleType, level: str, codec: KeyCodec, given_batches: list[tuple[list[Event], int]]
) -> None:
    batches, marked = [batch for batch, _ in given_batches], [n for _, n in given_batches]
    expected = run(PLAIN, level, codec, batches, marked)
    assert run(compiled, level, codec, batches, marked) == expected
