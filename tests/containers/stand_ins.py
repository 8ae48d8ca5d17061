"""Images of the servers under the names that the compose files give, made from the servers' own jars.

No image is pulled. What runs in them is Cassandra, Kafka, Apicurio and Pulsar as they are, and Debian's Prometheus; the
system around them, and the scripts by which official images read their variables, are ours.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import ssl
import subprocess
import tempfile
from pathlib import Path

import cassandra
import geomet
import yaml
from containers.engine import Engine

from helenus_stack.cassandra import MODULES
from helenus_stack.jars import fetch, read_lock, unpack
from helenus_stack.java import wheel_home
from helenus_stack.progress import Silent
from helenus_stack.resolve import resolve

FILES = Path(__file__).parent / "stand_ins"
BASE = "helenus-standin/debian"
COMPILER = "gcc libc6-dev python3-dev"
CASSANDRA = {
    "num_tokens": 1,
    "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
    "endpoint_snitch": "GossipingPropertyFileSnitch",
    "storage_port": 7000,
    "native_transport_port": 9042,
    "commitlog_sync": "periodic",
    "commitlog_sync_period": "10000ms",
    "commitlog_segment_size": "8MiB",
    "data_file_directories": ["/var/lib/cassandra/data"],
    "cdc_enabled": False,
    **{f"{name}_directory": f"/var/lib/cassandra/{name}" for name in ("commitlog", "hints", "saved_caches", "cdc_raw")},
}


def prepare(docker: Engine, cache: Path) -> None:
    """Builds what is not there yet."""
    base(docker, cache)
    trusted = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    assert trusted
    for tag, compiler in (("slim-bookworm", ""), ("bookworm", COMPILER)):
        build(docker, "python", f"python:3.11-{tag}", {"ca-certificates.crt": Path(trusted)}, COMPILER=compiler)
    java17, java21 = (wheel_home(version, Silent()) for version in (17, 21))
    _cassandra(docker, java17)
    jars = fetch(read_lock("kafka"), Silent(), resolve)
    build(
        docker,
        "kafka",
        "apache/kafka:4.3.1",
        {"java": java17, "lib": jars},
        {"server.properties": ""},
    )
    (registry,) = fetch(read_lock("registry"), Silent(), resolve)
    app = unpack(registry, Silent())
    build(docker, "registry", "apicurio/apicurio-registry:3.3.3", {"java": java21, "app": app})
    (archive,) = fetch(read_lock("pulsar"), Silent(), resolve)
    (home,) = unpack(archive, Silent()).iterdir()
    build(docker, "pulsar", "apachepulsar/pulsar:4.0.8", {"java": java17, "app": home})
    build(docker, "prometheus", "prom/prometheus:v2.53.5", {})


def base(docker: Engine, cache: Path) -> None:
    """A small Debian, from Debian's packages."""
    if docker.has(BASE):
        return
    root = cache / "debian"
    if not (root / "bin").exists():
        subprocess.run(["debootstrap", "--variant=minbase", "bookworm", str(root)], check=True, capture_output=True)
    with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(["/usr/bin/docker", "import", "-", BASE], stdin=tar.stdout, env=docker.environment, check=True)


def _cassandra(docker: Engine, java: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        driver = Path(folder, "driver")
        for package in (cassandra, geomet):
            source = Path(package.__path__[0])
            shutil.copytree(source, driver / source.name, ignore=shutil.ignore_patterns("__pycache__", "*.c", "*.pyx"))
        # It asks for its own version.
        site_packages = Path(importlib.metadata.distribution("cassandra-driver").locate_file("."))
        (metadata,) = site_packages.glob("cassandra_driver-*.dist-info")
        shutil.copytree(metadata, driver / metadata.name)
        modules = Path(folder, "modules")
        modules.write_text(" ".join(MODULES))
        logging = Path(__file__).parents[2] / "compose" / "helenus_stack" / "logback.xml"
        jars = fetch(read_lock("cassandra"), Silent(), resolve)
        build(
            docker,
            "cassandra",
            "cassandra:5.0",
            {"java": java, "driver": driver, "lib": [*jars, modules], "logback.xml": logging},
            {"cassandra.yaml": yaml.safe_dump(CASSANDRA, default_flow_style=None)},
        )


def build(
    docker: Engine,
    name: str,
    tag: str,
    files: dict[str, Path | list[Path]],
    texts: dict[str, str] | None = None,
    **arguments: str,
) -> None:
    """`docker build` of a folder in stand_ins, with files, or folders of files, beside its Dockerfile.

    Unless it is there, made of the same.
    """
    names = {
        key: [file.name for file in (paths if isinstance(paths, list) else [paths])] for key, paths in files.items()
    }
    made_of = hashlib.sha256(repr((names, texts, arguments)).encode())
    for source in sorted(path for path in (FILES / name).rglob("*") if path.is_file()):
        made_of.update(source.read_bytes())
    note = docker.directory / f"{tag.replace('/', '_')}.made-of"
    if docker.has(tag) and note.exists() and note.read_text() == made_of.hexdigest():
        return
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder, "context")
        shutil.copytree(FILES / name, context)
        for target, source in files.items():
            if isinstance(source, list):
                (context / target).mkdir()
                for file in source:
                    shutil.copy(file, context / target / file.name)
            elif source.is_dir():
                shutil.copytree(source, context / target, symlinks=True)
            else:
                shutil.copy(source, context / target)
        for target, text in (texts or {}).items():
            (context / target).write_text(text)
        build_arguments = [f"--build-arg={key}={value}" for key, value in arguments.items()]
        docker.run("build", "--network", "host", "--tag", tag, *build_arguments, str(context), seconds=1200)
    note.write_text(made_of.hexdigest())
