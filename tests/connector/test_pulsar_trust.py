"""Whom the client that reads events trusts: who the producer does, and not the list that it brings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helenus_connector.log import _pulsar_reader as pulsar_events
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.connection import Access


def trusted(config: PulsarConfig, monkeypatch: pytest.MonkeyPatch) -> str | None:
    client_options: dict[str, Any] = {}
    monkeypatch.setattr(pulsar_events, "_clients", {})
    monkeypatch.setattr(pulsar_events.pulsar, "Client", lambda url, **more: client_options.update(more))
    pulsar_events._client(config)
    file: str | None = client_options["tls_trust_certs_file_path"]
    return file


def test_the_systems_authorities_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Access, "bundle", property(lambda self: str(self.cafile or "/system.pem")))
    assert trusted(PulsarConfig("pulsar+ssl://b"), monkeypatch) == "/system.pem"
    assert trusted(PulsarConfig("pulsar+ssl://b", cafile=Path("/mine.pem")), monkeypatch) == "/mine.pem"
    assert trusted(PulsarConfig("pulsar://b"), monkeypatch) is None
