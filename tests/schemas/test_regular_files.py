"""Files whose names come from elsewhere are opened without the thread being stopped by what they are."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
import trustme

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.shape.encoding.registry import Registry
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.cassandra import connect
from helenus_schemas.settings import regular_files

CONFIG = {"name": "n", "keyspace": "ks", "table": "t", "cassandra.contact.points": "127.0.0.1", "cassandra.port": "1"}


def made(directory: Path, kind: str) -> Path:
    path = directory / kind
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "huge":
        with open(path, "wb") as file:
            file.truncate(1 << 30)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "empty":
        path.touch()
    return path


@pytest.mark.parametrize("kind", ["fifo", "directory", "huge", "device", "missing"])
@pytest.mark.parametrize("key", ["cafile", "certfile", "keyfile"])
def test_a_file_that_is_none(tmp_path: Path, kind: str, key: str) -> None:
    """Cassandra's certificates and the registry's: it is refused at once, and not waited for."""
    authority, path = trustme.CA(), made(tmp_path, kind)
    certificate = tmp_path / "certificate.pem"
    authority.issue_cert("c").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    files = {"certfile": certificate, "keyfile": certificate, key: path}
    for prefix, more in (
        ("cassandra.ssl", {"cassandra.ssl.enabled": "true"}),
        ("value.converter.schema.registry.ssl", {"value.converter.schema.registry.url": "https://127.0.0.1:1"}),
    ):
        properties = {**CONFIG, **more, **{f"{prefix}.{name}": str(file) for name, file in files.items()}}
        if prefix == "cassandra.ssl":
            properties["output.format"] = "json"
        settings = ConnectorSettings.from_properties(properties, "test")
        use = partial(connect, settings) if prefix == "cassandra.ssl" else Registry(settings, tmp_path / "memory").check
        with pytest.raises(HelenusError) as caught:
            use()
        assert caught.value.kind is Kind.CONFIG
        assert str(path) in str(caught.value)


def test_a_regular_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    (tmp_path / "link").symlink_to(path)
    with regular_files.opened(tmp_path / "link") as descriptor:
        assert os.read(descriptor, 100) == b"text"
    with pytest.raises(OSError, match="symbolic"), regular_files.opened(tmp_path / "link", follows_link=False):
        pass
    regular_files.check(path, None)
