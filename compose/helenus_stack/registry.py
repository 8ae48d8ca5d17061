"""Apicurio Registry, spoken to as a Confluent schema registry: its command, and when it is ready."""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from helenus_stack.jars import unpack
from helenus_stack.progress import Silent
from helenus_stack.server import Command, Server, own_temporary_folder
from helenus_stack.settings import Settings

PATH = "/apis/ccompat/v7"
"""The base of the Confluent API on this server."""
HEAP = "256m"


def server(settings: Settings, directory: Path) -> Server:
    """The schema registry of a stack."""
    folder = directory / "registry"
    return Server(
        name="registry",
        folder=folder,
        address="127.0.0.1",
        port=settings.registry_port,
        kind="registry",
        lock="registry",
        java=21,
        newer_java=True,
        prepare=partial(prepare, settings, folder),
        ready=partial(ready, url(settings)),
        ready_seconds=180,
    )


def url(settings: Settings) -> str:
    """What clients of Confluent's registry are given."""
    return f"http://127.0.0.1:{settings.registry_port}{PATH}"


def prepare(settings: Settings, folder: Path, java: Path, jars: Sequence[Path]) -> Command:
    """Unpacks the server; see `Server.prepare`."""
    (archive,) = jars
    properties = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": settings.registry_port,
        # A second listener, otherwise on all interfaces.
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": settings.management_port,
        # By default schemas live in memory only; in a file, a schema is on disk when its registration is answered.
        "apicurio.datasource.url": f"jdbc:h2:file:{folder / 'schemas'};WRITE_DELAY=0",
        "java.net.preferIPv4Stack": "true",
    }
    # One compiler and a plain collector: 40 % less CPU until it is ready, and it never has much to do.
    options = [f"-Xmx{HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError"]
    options += [own_temporary_folder(folder)]
    options += [f"-D{key}={value}" for key, value in properties.items()]
    # The server looks for its libraries in its working folder.
    return Command([str(java / "bin/java"), *options, "-jar", "quarkus-run.jar"], unpack(archive, Silent()))


def ready(base: str) -> bool:
    """Whether the registry lists its subjects."""
    # A registry on this machine is never reached through the proxy that the environment may name.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{base}/subjects", timeout=3) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
