"""A Docker engine of our own beside the tests, with its data in one directory: it is started, used and stopped here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from patience import eventually

COMPOSE = "github.com/docker/compose/v2@v2.40.3"
MISSING = "no {what} here: apt-get install --no-install-recommends docker.io iptables debootstrap (Debian 12)"
NO_COMPOSE = "no Compose v2 here: install it as Docker's plugin docker-compose, or Go, by which the test builds it"


class Engine:
    """`docker` and `docker compose` against one engine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # No BuildKit: its plugin is not in Debian.
        self.environment = {
            **os.environ,
            "GRAFANA_PASSWORD": "unused",  # of a service that is not started
            "DOCKER_HOST": f"unix://{directory}/socket",
            "DOCKER_BUILDKIT": "0",
            "COMPOSE_PROGRESS": "plain",
        }
        if not has_compose(os.environ):
            self.environment["DOCKER_CONFIG"] = f"{directory}/client"

    def run(self, *arguments: str, seconds: float = 600, check: bool = True) -> str:
        """What `docker ARGUMENTS` prints; an AssertionError with all of it if it fails."""
        process = subprocess.run(
            [program(), *arguments], env=self.environment, capture_output=True, text=True, timeout=seconds
        )
        assert process.returncode == 0 or not check, (
            f"docker {' '.join(arguments)}:\n{process.stdout}\n{process.stderr}"
        )
        return (process.stdout if check else process.stdout or process.stderr).strip()

    def has(self, image: str) -> bool:
        """Whether there is an image of that name."""
        return bool(self.run("images", "--quiet", image))


def program() -> str:
    """Debian's `docker`."""
    return "/usr/bin/docker"


def why_not() -> str | None:
    """What is missing here, as a sentence."""
    if os.geteuid() != 0:
        return "an engine needs root"
    for tool in ("dockerd", "iptables", "debootstrap"):
        if shutil.which(tool) is None:
            return MISSING.format(what=tool)
    return None if has_compose(os.environ) or shutil.which("go") else NO_COMPOSE


def has_compose(environment: Mapping[str, str]) -> bool:
    """Whether `docker` has Compose v2 as a plugin."""
    return subprocess.run([program(), "compose", "version"], env=environment, capture_output=True).returncode == 0


def build_compose(directory: Path) -> None:
    """Compose v2 by Go, which takes minutes: Debian 12 has none. Only this engine's client has it as a plugin."""
    plugin = directory / "client" / "cli-plugins" / "docker-compose"
    if plugin.exists():
        return
    process = subprocess.run(["go", "mod", "download", "-json", COMPOSE], capture_output=True, text=True, check=True)
    source = json.loads(process.stdout)["Dir"]
    environment = {**os.environ, "CGO_ENABLED": "0"}
    subprocess.run(["go", "build", "-o", str(plugin), "./cmd"], cwd=source, env=environment, check=True)


@contextmanager
def engine(directory: Path) -> Iterator[Engine]:
    """Starts `dockerd`; its images stay in the directory for the next time, its containers end with it."""
    directory.mkdir(parents=True, exist_ok=True)
    docker = Engine(directory)
    if not has_compose(docker.environment):
        build_compose(directory)
    command = ["dockerd", "--data-root", f"{directory}/data", "--exec-root", f"{directory}/exec"]
    command += ["-H", f"unix://{directory}/socket", "--pidfile", f"{directory}/pid"]
    # No higher than this machine's own, which may be low.
    command += ["--default-ulimit", "nofile=1024:1024"]
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:

        def ready() -> bool:
            assert process.poll() is None, (directory / "log").read_text()[-2000:]
            return bool(docker.run("version", "--format", "{{.Server.Version}}", check=False).startswith("2"))

        eventually(ready, "dockerd answers")
        yield docker
    finally:
        process.terminate()
        process.wait(60)
