"""A real Prometheus scrapes our metrics: dashboard and alerts get answers."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from compose.prometheus import program
from compose.test_observability import HERE, dashboard
from compose.test_observability import alerts as rules
from integration.pipeline import free_port
from patience import eventually

from helenus_agent import metrics as agent
from helenus_connector import metrics as connector
from helenus_schemas.service import monitoring

pytestmark = pytest.mark.integration

LABELS = ("shop-orders", "shop", "orders")


@pytest.fixture
def metrics() -> Iterator[int]:
    """A port with the metrics of an agent and a connector that have values."""
    connector.begin(LABELS, 0)
    connector.state(LABELS, "FAILED")
    connector.LAG.labels(*LABELS).set(7)
    agent.RAW_LIMIT.set(100)
    agent.RAW_BYTES.set(90)
    agent.EVENTS.labels("shop.orders").inc()
    agent.SKIPPED.labels("excluded").inc()
    agent.RETRIES.labels("append-failed").inc()
    connector.ERRORS.labels("cassandra-read").inc()
    server = monitoring.serve("127.0.0.1", 0, lambda: None)
    yield server.port
    server.shutdown()
    connector.forget(LABELS)
    agent.RAW_LIMIT.set(0)
    agent.RAW_BYTES.set(0)


@pytest.fixture
def prometheus(metrics: int, tmp_path: Path) -> Iterator[str]:
    """Our configuration, but for the addresses and a faster clock."""
    port = free_port()
    text = (HERE / "prometheus.yml").read_text().replace("10s", "1s")
    for target in ("agent:9400", "connector:8083"):
        assert target in text
        text = text.replace(target, f"127.0.0.1:{metrics}")
    (tmp_path / "prometheus.yml").write_text(text)
    shutil.copy(HERE / "alerts.yml", tmp_path)
    command = [program("prometheus"), "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--storage.tsdb.path=data"], cwd=tmp_path, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}/api/v1"
    finally:
        process.terminate()
        process.wait(30)


def ask(url: str, **parameters: str) -> dict[str, Any] | None:
    """The data of an answer; None while there is no Prometheus."""
    try:
        with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(parameters)}", timeout=10) as answer:
            return dict(json.load(answer)["data"])
    except OSError:
        return None


def test_our_metrics_answer_the_dashboard(prometheus: str) -> None:
    def scraped() -> bool:
        answer = ask(f"{prometheus}/targets") or {"activeTargets": []}
        return [target["health"] for target in answer["activeTargets"]] == ["up", "up"]

    eventually(scraped, "both targets are scraped")
    # A rate needs two scrapes between which something happened.
    unanswered = []

    def answered() -> bool:
        for metric in (connector.EVENTS_READ, connector.STATEMENTS, connector.QUERY_SECONDS):
            metric.labels(*LABELS).inc()
        connector.BATCH_SECONDS.observe(0.1)
        agent.FLUSH.observe(0.01)
        time.sleep(1)
        unanswered.clear()
        for panel in dashboard()["panels"]:
            for target in panel["targets"]:
                query = target["expr"].replace("$connector", ".*")
                answer = ask(f"{prometheus}/query", query=query)
                if not answer or not answer["result"]:
                    unanswered.append(query)
        return not unanswered

    eventually(answered, lambda: f"an answer to {unanswered}")
    eventually(lambda: "HelenusTaskFailed" in alerts(prometheus), "the alert of the failed task")
    names = {rule["alert"] for rule in rules()}
    eventually(lambda: evaluated(prometheus) == names, lambda: f"{names - evaluated(prometheus)} without an error")


def evaluated(prometheus: str) -> set[str]:
    """The alerts whose expressions Prometheus has evaluated, on our metrics, without an error."""
    answer = ask(f"{prometheus}/rules") or {"groups": []}
    return {rule["name"] for group in answer["groups"] for rule in group["rules"] if rule["health"] == "ok"}


def alerts(prometheus: str) -> set[str]:
    answer = ask(f"{prometheus}/alerts") or {"alerts": []}
    return {alert["labels"]["alertname"] for alert in answer["alerts"] if alert["state"] == "firing"}
