"""Alerts and dashboard: they ask for metrics that there are, and Prometheus and Grafana's schemas take them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from compose.prometheus import program
from prometheus_client.metrics import MetricWrapperBase

from helenus_agent import metrics as agent
from helenus_connector import metrics as connector
from helenus_connector.snapshot import _metrics as snapshot
from helenus_connector.verify import _metrics as verify

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "compose" / "observability"


def alerts() -> list[dict[str, Any]]:
    with open(HERE / "alerts.yml") as file:
        return [rule for group in yaml.safe_load(file)["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    return dict(json.loads((HERE / "grafana" / "helenus.json").read_text()))


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in alerts())
    yield from (target["expr"] for panel in dashboard()["panels"] for target in panel["targets"])
    yield from (variable["definition"] for variable in dashboard()["templating"]["list"])


def exported() -> dict[str, set[str]]:
    """Name of each series that agent and connector export -> its labels."""
    labels_by_metric: dict[str, set[str]] = {}
    for module in (agent, connector):
        for metric in vars(module).values():
            if not isinstance(metric, MetricWrapperBase):
                continue
            label_values = ["x"] * len(metric._labelnames)
            if label_values:
                metric.labels(*label_values)
            for family in metric.collect():
                for sample in family.samples:
                    labels_by_metric.setdefault(sample.name, set()).update(sample.labels)
            if label_values:
                metric.remove(*label_values)
    return labels_by_metric


def test_every_metric_that_is_queried_is_exported() -> None:
    labels_by_metric = exported()
    queried = {name for text in expressions() for name in re.findall(r"helenus_\w+", text)}
    assert len(queried) > 25
    assert queried - labels_by_metric.keys() == set()


def test_labels_that_are_queried_exist() -> None:
    labels_by_metric = exported()
    for text in expressions():
        for name, selector in re.findall(r"(helenus_\w+)\{([^}]*)\}", text):
            assert set(re.findall(r"(\w+)=~?\"", selector)) <= labels_by_metric[name], text
        own = set().union(
            *(labels_by_metric[name] for name in re.findall(r"helenus_\w+", text)), {"instance", "job", "le"}
        )
        for names in re.findall(r"by \(([^)]*)\)", text):
            assert {name.strip() for name in names.split(",")} <= own, text


def test_every_serious_problem_has_an_alert() -> None:
    text = " ".join(rule["expr"] for rule in alerts())
    for needed in (
        "cdc_raw_headroom_bytes",
        "quarantined_segments",
        "lost_segments_total",
        "lag_events",
        'outcome="dead_lettered"',
        "events_lost_total",
        'connector_task_state{state="FAILED"',
        'connector_state{state="FAILED"',
    ):
        assert needed in text
    for rule in alerts():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]


def test_every_alert_and_metric_is_explained_and_no_other() -> None:
    guide = (ROOT / "docs" / "monitoring.md").read_text()
    _, of_alerts = guide.split("\n## Alerts\n")
    rows = re.findall(r"^\| `(Helenus\w+)` \|.*\| (.*) \|$", of_alerts, re.MULTILINE)
    assert sorted(rule["alert"] for rule in alerts()) == sorted(name for name, _ in rows)
    assert [name for name, advice in rows if not advice.strip()] == [], "say in the last column what to do"
    modules = (agent, connector, snapshot, verify)
    ours = [m for module in modules for m in vars(module).values() if isinstance(m, MetricWrapperBase)]
    names = [m._name for m in ours]
    assert len(names) > 30
    assert [name for name in names if f"`{name}" not in guide] == []
    documented = set(re.findall(r"helenus_(?:agent|connector)_\w+", guide))
    assert documented - exported().keys() - set(names) == set()


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    occupied: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        position = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(position["x"], position["x"] + position["w"])
            for y in range(position["y"], position["y"] + position["h"])
        }
        assert not cells & occupied
        assert max(x for x, _ in cells) < 24
        occupied |= cells


def grafana_schema(name: str, definition: str) -> jsonschema.Draft7Validator:
    """Return the schema of what Grafana reads, which refuses names that it does not know. It has defaults for most."""
    schema = json.loads((Path(__file__).parent / "grafana" / f"{name}.json").read_text())
    if name != "dashboard":
        for part in schema["definitions"].values():
            part.pop("required", None)
    return jsonschema.Draft7Validator({**schema, "$ref": f"#/definitions/{definition}"})


def test_dashboard_is_of_grafanas_schemas() -> None:
    content = dashboard()
    for variable in content["templating"]["list"]:
        # Grafana saves an object of texts; the schema is generated, and takes texts or objects of objects.
        assert set(variable["query"]) == {"query", "refId"}
        variable["query"] = variable["query"]["query"]
    grafana_schema("dashboard", "Dashboard").validate(content)
    for panel in content["panels"]:
        grafana_schema(panel["type"], "Options").validate(panel.get("options", {}))
        custom = panel["fieldConfig"]["defaults"].get("custom", {})
        assert panel["type"] == "timeseries" or not custom
        grafana_schema("timeseries", "GraphFieldConfig").validate(custom)
        for target in panel["targets"]:
            grafana_schema("prometheus", "Dataquery").validate(target)
    content["panels"][0]["gridPos"]["x"] = "left"
    with pytest.raises(jsonschema.ValidationError):
        grafana_schema("dashboard", "Dashboard").validate(content)


@pytest.mark.parametrize(
    "arguments",
    [["check", "config", "prometheus.yml"], ["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]],
)
def test_prometheus_takes_them(arguments: list[str]) -> None:
    process = subprocess.run([program("promtool"), *arguments], cwd=HERE, capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stdout + process.stderr
