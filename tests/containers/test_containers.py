"""Both compose files on a real engine: our images from their Dockerfiles, the servers' from their jars."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import stand_ins
from containers.engine import Engine, engine, why_not
from containers.project import ROOT, Project
from patience import eventually

from helenus_stack.files import cache_directory

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def docker() -> Iterator[Engine]:
    """An engine with all images: ours are built again, from what is in the tree now."""
    if missing := why_not():
        pytest.fail(missing)
    cache = Path(os.environ.get("HELENUS_ENGINE") or cache_directory() / "engine")
    with engine(cache) as docker_engine:
        stand_ins.prepare(docker_engine, cache)
        for part in ("agent", "connector"):
            build(docker_engine, part)
        yield docker_engine


def build(docker: Engine, part: str, *more: str) -> None:
    """What the head of each Dockerfile says to type."""
    command = ["build", "--network", "host", "-f", f"{ROOT}/{part}/Dockerfile", "-t", f"helenus-{part}", *more]
    docker.run(*command, str(ROOT), seconds=1800)


@pytest.fixture(params=["kafka", "pulsar"])
def project(docker: Engine, request: pytest.FixtureRequest) -> Iterator[Project]:
    compose_project = Project(docker, request.param)
    compose_project.compose("down", "--volumes", check=False)
    try:
        compose_project.up()
        yield compose_project
    finally:
        compose_project.compose("down", "--volumes", "--timeout", "20", check=False)


def test_a_compose_file(project: Project) -> None:
    print(f"\nimages in MB, with the stand-in base: {project.images()}")
    project.follows("first")
    compiled = "import helenus_connector.shape.envelope.direct_records as d; print(d.__file__)"
    assert project.execute("connector", "python", "-c", compiled).endswith(".so")
    assert project.execute("agent", "id", "-u") == "999"
    assert project.ready("agent")[0] == 200
    eventually(lambda: project.ready("connector")[0] == 200, "the connector is ready")
    # An agent of another user than Cassandra's: one sentence, and no traceback.
    output = project.without_rights()
    assert "agent.failed" in output, output
    assert "cdc_raw may not be read" in output, output
    assert "Traceback" not in output
    if "prometheus" in project.services:
        both = {"helenus-agent": "up", "helenus-connector": "up"}
        eventually(lambda: project.targets() == both, lambda: f"Prometheus scrapes both: {project.targets()}")
    # A restart of each service, one after the other.
    for service in (s for s in project.services if s not in ("schema", "prometheus")):
        project.compose("restart", service)
        project.follows(f"after-{service}")
    # The broker is away: alive, but not ready, and both say why.
    project.compose("stop", project.log)
    project.write("meanwhile")
    eventually(lambda: project.ready("agent")[0] == 503, "the agent says that its broker is away")
    assert project.health("agent") == "healthy"
    project.compose("start", project.log)
    eventually(lambda: project.records("meanwhile"), project.state, every=2)
    # A program that hangs is unhealthy.
    project.compose("kill", "--signal", "STOP", "agent")
    eventually(lambda: project.health("agent") == "unhealthy", "the agent's health turns")
    project.compose("kill", "--signal", "CONT", "agent")
    eventually(lambda: project.health("agent") == "healthy", "and back")
    # Newer images on the volumes of the older ones.
    before = project.compose("ps", "--quiet", "agent", "connector").split()
    for part in ("agent", "connector"):
        build(project.docker, part, "--label", f"upgraded={project.log}")
    project.up("agent", "connector")
    assert not set(before) & set(project.compose("ps", "--quiet", "agent", "connector").split())
    project.follows("upgraded")
    assert project.records("first")  # nothing was made again
