"""Programs that are built here from their Go modules, into the cache: `helm`, `kube-apiserver`, `etcd` and a collector
of OpenTelemetry.

Each has a module below go/, whose go.sum has the checksums of all that it is built of. The first build of the API
server takes seven minutes on two cores, and 4 GB in Go's own caches.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from helenus_stack.files import cache_directory, exclusive
from helenus_stack.progress import Silent

_HERE = Path(__file__).parent / "go"
_PACKAGES = {
    "helm": ("helm", "helm.sh/helm/v3/cmd/helm"),
    "kube-apiserver": ("apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "etcd": ("etcd", "go.etcd.io/etcd/server/v3"),
    "otel-collector": ("collector", "."),
}
_VERSION = "k8s.io/component-base/version.git"
_VERSIONS = {"kube-apiserver": f"-X {_VERSION}Version=v1.37.2 -X {_VERSION}Major=1 -X {_VERSION}Minor=37"}
"""What a release's build tells the program, which helm asks for. It is that of go.mod."""
BUILD_SECONDS = 1800


def program(name: str) -> Path:
    """Return the path of a program. Skips the test where there is no Go, or its modules can't be downloaded."""
    module, package = _PACKAGES[name]
    go = shutil.which("go")
    if go is None:
        pytest.skip(f"no Go here, by which the test builds {name}: install Go 1.26 or later")
    directory = _HERE / module
    files = [path.read_bytes() for path in (*sorted(directory.glob("*.*")), Path(__file__))]
    digest = hashlib.sha256(b"".join(files)).hexdigest()[:12]
    target = cache_directory() / "kubernetes" / f"{name}-{digest}"
    with exclusive(target.with_suffix(".lock"), Silent(), f"another test builds {name}"):
        if not target.exists():
            _run([go, "mod", "download"], directory, f"the Go modules of {name} can't be downloaded")
            partial = target.with_suffix(".new")
            flags = f"-s -w {_VERSIONS.get(name, '')}"
            command = [go, "build", "-mod=readonly", "-trimpath", f"-ldflags={flags}", "-o", str(partial), package]
            build = subprocess.run(
                command, cwd=directory, env=_environment(), capture_output=True, text=True, timeout=BUILD_SECONDS
            )
            assert build.returncode == 0, build.stderr[-2000:]
            partial.rename(target)
    return target


def _run(command: list[str], directory: Path, problem: str) -> None:
    process = subprocess.run(command, cwd=directory, env=_environment(), capture_output=True, text=True, timeout=600)
    assert "checksum mismatch" not in process.stderr, process.stderr
    if process.returncode:
        pytest.skip(f"{problem}: {(process.stderr.strip().splitlines() or ['?'])[-1]}")


def _environment() -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
