"""A worker in the pod that the chart makes: confined as there, with real servers."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chart import rendering
from chart.confined import Confined, MountedPod
from chart.rendering import pick
from integration.pipeline import Pipeline, free_port, script
from patience import eventually

from helenus_stack.java import spark_java_home
from helenus_stack.progress import Silent
from helenus_stack.status import Status

pytestmark = [pytest.mark.integration, pytest.mark.long]

TABLE = "podded.orders"
FIELDS = {"metadata.name": "helenus-0"}


@pytest.fixture(scope="module")
def pipeline(status: Status, session: Any, directory: Path) -> Iterator[Pipeline]:
    session.execute("CREATE KEYSPACE podded WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    session.execute(f"CREATE TABLE {TABLE} (k int PRIMARY KEY, n int) WITH cdc = true")
    pipeline = Pipeline(status, directory)
    try:
        pipeline.agent.start().ready()
        yield pipeline
    finally:
        pipeline.stop()


def test_a_worker_runs_in_its_pod(pipeline: Pipeline, session: Any, tmp_path: Path) -> None:
    """It publishes, answers its probes, writes to its volumes alone, and ends on SIGTERM."""
    port = free_port()
    connector = "".join(f"{key}={value}\n" for key, value in pipeline.connector_properties(TABLE).items())
    values = {
        "connector": {
            "properties": f"bootstrap.servers={pipeline.status.bootstrap_servers}\n",
            "connectors": {"podded-orders": connector},
            "groupId": "podded",
            "rest": {"port": port, "loginSecret": "login"},
            "secrets": ["other"],
        }
    }
    manifests = rendering.of_values(values)
    spec = pick(manifests, "StatefulSet")["spec"]["template"]["spec"]
    secrets = {"login": {"login.properties": "rest=me:secret\n"}, "other": {"a": "b"}}
    pod = MountedPod(spec, manifests, secrets, tmp_path / "pod")
    here = Path(sys.executable).parent
    variables = {
        **pod.environment(FIELDS, secrets),
        "PATH": f"{here}:/usr/bin:/bin",
        "JAVA_HOME": str(spark_java_home(Silent())),
        "HOME": "/home/helenus",
    }
    log = tmp_path / "worker.log"
    confined = Confined(pod, variables)
    readiness = pod.container["readinessProbe"]["exec"]["command"]
    try:
        confined.start([script("helenus-connector"), *pod.arguments], log)

        def is_ready() -> bool:
            assert confined.ended() is None, log.read_text()
            return confined.run(readiness).returncode == 0

        eventually(is_ready, lambda: f"{confined.run(readiness).stderr}\n{log.read_text()}")
        for probe in ("startupProbe", "livenessProbe"):
            path = pod.container[probe]["httpGet"]["path"]
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10).close()
        for k in range(20):
            session.execute(f"INSERT INTO {TABLE} (k, n) VALUES ({k}, {k})")
        eventually(lambda: len(pipeline.records(TABLE)) >= 20, log.read_text)
        for path in ("/x", "/etc/helenus/config/x", "/etc/helenus/secrets/other/x", "/home/x"):
            assert confined.run(["touch", path]).returncode, path
        secret = confined.run(["cat", "/etc/helenus/secrets/other/a"])
        assert (secret.returncode, secret.stdout) == (0, "b")
        assert confined.written("/var/lib/helenus") == {"connector", "spark"}
        assert confined.written("/dev/shm")
        assert confined.stop() == 0, log.read_text()
    finally:
        if confined.ended() is None:
            confined.stop()
    text = log.read_text()
    assert "Read-only file system" not in text
    assert "Permission denied" not in text
