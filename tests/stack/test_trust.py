"""Behind an authority of one's own: how Java learns of the certificates that other programs trust."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import pkcs12

from helenus_stack.errors import StackError
from helenus_stack.resolve import CERTIFICATES, trust


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*CERTIFICATES, "JAVA_TOOL_OPTIONS", "MAVEN_OPTS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Two authorities, one of them twice, and one that can't be read."""
    first, other = (trustme.CA().cert_pem.bytes() for _ in range(2))
    broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    path = tmp_path / "bundle.pem"
    path.write_bytes(b"# ours\n" + first + broken + other + first)
    return path


@pytest.mark.parametrize("name", CERTIFICATES)
def test_java_trusts_what_others_trust(
    name: str, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, str(bundle))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xmx64m")
    options = trust(tmp_path)["JAVA_TOOL_OPTIONS"]
    store = tmp_path / "trust.p12"
    assert options.startswith(f"-Xmx64m -Djavax.net.ssl.trustStore={store} ")
    assert len(pkcs12.load_pkcs12(store.read_bytes(), b"helenus").additional_certs) == 2


def test_a_store_that_is_named_already_counts(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trust(tmp_path) == {}
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    monkeypatch.setenv("MAVEN_OPTS", "-Djavax.net.ssl.trustStore=/etc/theirs")
    assert trust(tmp_path) == {}


@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), ("no certificate", "no certificate in PEM")])
def test_a_file_that_is_none_is_named(
    content: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bundle.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("PIP_CERT", str(path))
    with pytest.raises(StackError, match=why) as raised:
        trust(tmp_path)
    assert f"PIP_CERT={path}" in str(raised.value)
