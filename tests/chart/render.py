"""Renders a chart, in a process of its own: Helm's library brings Go's runtime along.

Reads a JSON list of {"chart", "values", "lint"} from standard input, and writes a list of {"manifests": name by text},
{"messages": [text]} or {"error": text}.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import helm_python


def answer(request: dict[str, Any]) -> dict[str, Any]:
    if request["lint"]:
        report = helm_python.lint(request["chart"], request["values"], strict=True, kube_version="v1.33.0")
        # 1: information, such as a missing icon.
        findings = [
            f"{message['path']}: {message['error']}" for message in report["messages"] if message["severity"] > 1
        ]
        return {"messages": findings + report["errors"]}
    with helm_python.Chart.load(request["chart"]) as chart:
        try:
            return {"manifests": chart.render(request["values"], name="helenus", namespace="cdc")}
        except helm_python.HelmError as error:
            return {"error": str(error)}


json.dump([answer(request) for request in json.load(sys.stdin)], sys.stdout)
