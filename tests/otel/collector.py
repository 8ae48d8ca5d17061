"""A collector of OpenTelemetry, built here from its Go modules, that writes what it receives to a file."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chart.go_programs import program
from integration.pipeline import free_port
from otel.receiver import ReceivedSpan
from patience import eventually

from helenus_stack.process import end_child

_KINDS = {"SPAN_KIND_INTERNAL": 1, "SPAN_KIND_PRODUCER": 4, "SPAN_KIND_CONSUMER": 5}
_CONFIG = """
receivers:
  otlp:
    protocols:
      http: {{endpoint: "127.0.0.1:{port}"}}
exporters:
  file: {{path: "{path}", flush_interval: 200ms}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    traces: {{receivers: [otlp], exporters: [file]}}
"""


class Collector:
    """A collector that runs; `received` reads its file."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.path = directory / "spans.json"
        self.log = directory / "collector.log"
        self.config = directory / "collector.yaml"
        self.config.write_text(_CONFIG.format(port=self.port, path=self.path))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        return self.log.exists() and "Everything is ready" in self.log.read_text(errors="replace")

    def received(self) -> list[ReceivedSpan]:
        text = self.path.read_text() if self.path.exists() else ""
        lines = text.splitlines()[: text.count("\n")]  # the last one may be half written
        return [span for line in lines for span in _spans(json.loads(line))]


@contextmanager
def collecting(directory: Path) -> Iterator[Collector]:
    """Run a collector on loopback. Skips the test where it can't be built."""
    collector = Collector(directory)
    command = [str(program("otel-collector")), f"--config=file:{collector.config}"]
    with collector.log.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
    try:
        eventually(
            lambda: process.poll() is not None or collector.is_ready(),
            lambda: f"the collector is ready:\n{collector.log.read_text()[-2000:]}",
        )
        assert process.poll() is None, collector.log.read_text()[-2000:]
        yield collector
    finally:
        end_child(process)


def _spans(request: dict[str, Any]) -> Iterator[ReceivedSpan]:
    for resource_spans in request["resourceSpans"]:
        service = _attributes(resource_spans["resource"]["attributes"])["service.name"]
        for scope_spans in resource_spans["scopeSpans"]:
            for span in scope_spans["spans"]:
                kind = span.get("kind", 0)
                yield ReceivedSpan(
                    service,
                    span["name"],
                    span["traceId"],
                    span["spanId"],
                    span.get("parentSpanId", ""),
                    _KINDS.get(kind, kind),
                    int(span["startTimeUnixNano"]),
                    int(span["endTimeUnixNano"]),
                    _attributes(span.get("attributes", [])),
                    tuple((link["traceId"], link["spanId"]) for link in span.get("links", [])),
                )


def _attributes(pairs: list[Any]) -> dict[str, Any]:
    return {pair["key"]: next(iter(pair["value"].values())) for pair in pairs}
