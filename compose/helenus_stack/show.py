"""How the demo shows statements, events and records: as lines, styled where the terminal can."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.text import Text

from helenus_schemas.event.change import Scope
from helenus_stack.compare import Difference
from helenus_stack.programs import addresses
from helenus_stack.records import Record
from helenus_stack.status import Status
from helenus_stack.trace import Trace

LEGEND = """\
Each statement, and below it its event and its record:
  event   the agent has read it in the commit log: time from Cassandra's answer until a consumer had the event
  record  the connector has read the row again: time from the event until a consumer had the record
          and then the record's key and value, without nulls"""


def plain(value: Any) -> Any:
    """A value of a record, or of a row as the driver gives it, as JSON can show it: decimals and times as text."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if hasattr(value, "_asdict"):  # a user-defined type from the driver
        value = value._asdict()
    if isinstance(value, Mapping):
        if value.keys() == {"bigint", "scale"}:
            return str(Decimal(int.from_bytes(value["bigint"], "big", signed=True)).scaleb(-value["scale"]))
        return {str(plain(key)): plain(v) for key, v in value.items() if v is not None}
    return [plain(v) for v in value] if isinstance(value, Iterable) else str(value)


def key_text(key: Mapping[str, Any]) -> str:
    """A record's key, its columns joined by slashes; `*` stands for a whole partition's clustering columns."""
    return "/".join("*" if value is None else str(plain(value)) for value in key.values())


def value_text(value: Mapping[str, Any] | None, before: Mapping[str, Any] | None = None) -> Text:
    """A record's value, or a row: its columns that are not null, bold where they differ from `before`."""
    if value is None:
        return Text("null", "bold red")
    shown: Sequence[Text] = [
        Text(f"{name}: {json.dumps(plain(v), ensure_ascii=False)}", "" if before and before.get(name) == v else "bold")
        for name, v in value.items()
        if v is not None
    ]
    return Text.assemble("{", Text(", ").join(shown), "}")


@dataclass
class Show:
    """Prints traces on `console` and keeps what the summary shows."""

    console: Console
    traces: list[Trace] = field(default_factory=list)
    _last: dict[str, Record] = field(default_factory=dict)

    def title(self, text: str) -> None:
        """A heading."""
        self.console.print(Text(f"\n{text}", "bold cyan"))

    def statement(self, cql: str) -> None:
        """A statement that was given to Cassandra."""
        self.console.print(Text(cql))

    def trace(self, trace: Trace) -> None:
        """What became of the statement above."""
        record = trace.record
        key = key_text(record.key)
        last = self._last.get(key)
        line = Text("  → ", "dim")
        line.append(f"event {'+' + milliseconds(trace.event_after):>7}", "green")
        line.append(" → ", "dim")
        line.append(f"record {'+' + milliseconds(trace.record_after):>7}", "green")
        line.append(f"  {key} ")
        line.append_text(value_text(record.value, last.value if last else None))
        if trace.change.scope is Scope.PARTITION:
            line.append("  (every row of this partition is gone)", "dim")
        previous = next((t.record.schema_id for t in reversed(self.traces) if t.record.schema_id is not None), None)
        if previous is not None and record.schema_id not in (None, previous):
            line.append(f"  (value schema {previous} → {record.schema_id})", "yellow")
        self.console.print(line)
        self.traces.append(trace)
        self._last[key] = record

    def summary(self, statements: int, records: int, seconds: float) -> None:
        """Counts, and the median of each hop. `records` are all in the data topic; the demo has taken `seconds`."""
        events = [t.event_after for t in self.traces]
        delays = [t.record_after for t in self.traces]
        both = [a + b for a, b in zip(events, delays, strict=True)]
        self.console.print(
            f"\n{statements} statements, {len(events)} events, {records} records (one each at least) "
            f"in {seconds:.0f} s. "
            f"Median from statement to event {milliseconds(median(events))}, "
            f"from event to record {milliseconds(median(delays))}, in all {milliseconds(median(both))}."
        )


def milliseconds(seconds: float) -> str:
    """`62 ms`, or `8.1 s` for what takes seconds."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def verdict(mismatches: Sequence[Difference]) -> str:
    """The last line of the demo: `converged`, or the keys that differ."""
    if not mismatches:
        return "converged: the last record of every key equals its row"
    return "\n".join(["not converged, keys that differ:", *(f"  {difference}" for difference in mismatches)])


def how_to_go_on(status: Status, table: str) -> str:
    """What to do with a stack that is left running with agent and connector for `table`."""
    here = invocation()
    agent, connector = addresses(Path(status.directory) / "demo")
    brokers = f"Kafka {status.bootstrap_servers}, registry {status.registry_url}"
    if status.log == "pulsar":
        brokers = f"Pulsar {status.pulsar_url}, its REST API {status.pulsar_admin_url}"
    where = "" if Path(status.directory) == Path(".helenus-stack").absolute() else f" --dir {status.directory}"
    return f"""
Everything is left running. Write to the table:
  {here} cql{where} "UPDATE {table} SET status = 'lost' WHERE customer = 'ada' AND order_id = 1"
Watch its records, or its events:
  {here} watch{where} data-{table}
  {here} watch{where} events-{table}
Open their pages in a browser:
  {connector}/ of the connector
  {agent}/ of the agent
Look at the connector in a terminal, or ask it over Kafka Connect's REST API:
  {invocation("helenus-connector")} top --url {connector}
  curl '{connector}/connectors?expand=status'
Metrics for Prometheus, and /health/ready:
  {connector}/metrics of the connector
  {agent}/metrics of the agent
Stop it:
  {here} down{where}
Cassandra {status.contact_points[0]}:{status.cql_port}, {brokers}
Configuration in {status.directory}/demo, logs in {status.directory}/logs"""


def invocation(command: str = "helenus-stack") -> str:
    """How one of our commands is called in this environment."""
    if shutil.which(command):
        return command
    script = Path(sys.executable).with_name(command)
    if not script.exists():
        return f"{sys.executable} -m {command.replace('-', '_')}.cli"
    return str(script.relative_to(Path.cwd())) if script.is_relative_to(Path.cwd()) else str(script)
