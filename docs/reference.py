"""Writes docs/configuration.md from the models that read the files, and tables of other pages.

Those of debezium.md and datastax.md come from the keys that are accepted, those of monitoring.md from metrics, alerts
and log calls.

`make reference` runs it. Tests compare them.
"""

from __future__ import annotations

import ast
import itertools
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
import yaml
from prometheus_client.metrics import MetricWrapperBase
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from helenus_agent import metrics as agent_metrics
from helenus_agent.aliases import ALIASES as AGENT_ALIASES
from helenus_agent.aliases import ENVIRONMENT, ON_PULSAR
from helenus_agent.config import AgentSettings
from helenus_connector import metrics as connector_metrics
from helenus_connector.config._aliases import DATASTAX
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.replication import ReplicationSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.snapshot import _metrics as snapshot_metrics
from helenus_connector.verify import _metrics as verify_metrics
from helenus_schemas.settings import debezium
from helenus_schemas.settings.model import EXPERT, Alias, Group, Settings

HEAD = """# Configuration

Java properties files: one for each agent, one for each worker, one for each connector. `helenus-agent validate` and
`helenus-connector validate` check files without any server, and list all wrong values at once. Examples:
[agent](../agent/agent.properties), [worker](../connector/worker.properties),
[table](../connector/table.properties). This page is generated from the models that read the files (`make reference`).

- A value may hold `${env:NAME}`, an environment variable, or `${file:PATH:KEY}`, a key of another properties file.
  Write secrets this way. No secret, literal or referred to, is ever shown in messages, in the log, over REST or in
  process lists, except `spark.*.extraJavaOptions` in process lists: a JVM takes them on its command line.
- Durations end in `.ms`. Lists are separated by commas. Keys under `NAME.*` are passed on unchanged.
- [Older names and keys of other products](#other-names) are accepted.
"""
EXPERT_HEAD = """\
The defaults suit every deployment, and a wrong value costs rows, memory or speed: set a key only where an error, a log
event or a page of this documentation names it.
"""
NAMES_HEAD = """
## Other names
The worker's names are those of Kafka Connect's workers; the agent has the same for the same things.

- **An older name** loads as its key. A file may not have both with different values.
- **A key of another product** is accepted with a warning that names the key to use, which takes precedence. Keys of
  DataStax CDC are in [datastax.md](datastax.md#key-by-key).
- **Files of Debezium's connector for Cassandra** are read as they are: [debezium.md](debezium.md).
"""
CONVERTERS = "In both tables `…NAME` is `key.converter.NAME` and `value.converter.NAME`.\n\n"
TABLE_HEAD = "| key | what it is | values | default |\n|---|---|---|---|\n"
Row = tuple[str, ...]
"""Cells of a row of a table. The first is the name."""
COMMANDS: tuple[tuple[str, str, type[Settings]], ...] = (
    ("The agent", "`helenus-agent agent.properties`", AgentSettings),
    ("The worker", "`helenus-connector worker.properties table.properties ...`: the first file.", WorkerSettings),
    (
        "A connector",
        "One file for each, after the worker's on the command line; or a body of the REST API.",
        ConnectorSettings,
    ),
    (
        "A replicator",
        "`helenus-connector replicate replicate.properties`, and `compare` ([replicate.md](replicate.md)).",
        ReplicationSettings,
    ),
)


def page() -> str:
    """Return the text of configuration.md."""
    parts = (f"\n## {title}\n{intro}\n{''.join(_sections(model))}" for title, intro, model in COMMANDS)
    return HEAD + "".join(parts) + "".join(_other_names())


def _sections(model: type[Settings]) -> Iterator[str]:
    """Yield the sections of a file's keys. Keys that the agent has too are shown there alone."""
    agent = {} if model is AgentSettings else _rows(AgentSettings)
    for section, rows in _rows(model).items():
        new = [row for row in rows.values() if row not in agent.get(section, {}).values()]
        intro = EXPERT_HEAD if section == EXPERT else ""
        if len(new) < len(rows):
            assert agent[section].keys() <= rows.keys(), section
            intro = f"As [the agent's](#{section.lower()}){', with:' if new else '.'}\n"
        # Markdown's tables begin after an empty line, or a heading.
        head = ("\n" if intro else "") + TABLE_HEAD if new else ""
        yield f"\n### {section}\n{intro}{head}"
        for cells, equal in itertools.groupby(new, key=lambda row: row[1:]):
            yield f"| {' | '.join((', '.join(row[0] for row in equal), *cells))} |\n"


def _rows(model: type[Settings]) -> dict[str, dict[str, Row]]:
    """Return the rows of a file's keys, by section and key."""
    declared = (vars(base).get("__annotations__", {}).keys() & model.model_fields.keys() for base in model.__mro__)
    names = next(filter(None, declared))  # of the model itself, or of the class that declares its keys
    own = [field for name, field in model.model_fields.items() if name in names]
    fields = own + [field for field in model.model_fields.values() if field not in own]
    sections = dict.fromkeys(_group(f).section for f in fields)
    rows: dict[str, dict[str, Row]] = {section: {} for section in sorted(sections, key=EXPERT.__eq__)}  # it is the last
    for field in model.model_fields.values():
        if not _group(field).replaced_by:
            row = _row(model, field)
            rows[_group(field).section][row[0]] = row
    return rows


def _other_names() -> Iterator[str]:
    """Yield the older names of keys, and the keys of other products that no other page has: which key each stands for,
    or why none is needed.
    """
    yield NAMES_HEAD
    yield "\n### Older names\n| older | now | in the file of |\n|---|---|---|\n"
    older: dict[tuple[str, str], list[str]] = {}
    for title, _, model in COMMANDS:
        for name, key in _older_names(model).items():
            older.setdefault((name, key), []).append(title.lower())
    for (name, key), files in older.items():
        yield f"| `{name}` | `{key}` | {', '.join(files)} |\n"
    for title, _, model in COMMANDS:
        names: dict[tuple[str, str], list[str]] = {}
        for name, alias in _aliases(model).items():
            if name not in AGENT_ALIASES and name not in DATASTAX:
                names.setdefault((alias.use, "" if alias.use else alias.why), []).append(name)
        used = [f"| `{use}` | {_listed(of_use)} |\n" for (use, _), of_use in names.items() if use]
        if used:
            yield f"\n### {title}: keys of other products\n{CONVERTERS}| key | also accepted |\n|---|---|\n"
            yield from used
        unused = [f"| {_listed(ignored)} | {why} |\n" for (use, why), ignored in names.items() if not use]
        if unused:
            yield f"\n### {title}: keys of other products that are not needed\n| key | because |\n|---|---|\n"
            yield from unused


def _listed(names: Sequence[str]) -> str:
    """List names; one that keys and values have, as `…NAME`."""
    shown = dict.fromkeys(f"…{name.partition('.converter.')[2]}" if _twin(name) in names else name for name in names)
    return ", ".join(f"`{name}`" for name in shown)


def _twin(name: str) -> str:
    """Return the name that the setting of a converter has on the other side, of keys or of values."""
    side, _, setting = name.partition(".converter.")
    return f"{'value' if side == 'key' else 'key'}.converter.{setting}"


def _older_names(model: type[Settings]) -> dict[str, str]:
    """The older names of keys that this file has: those of one key, and those of a part of one."""
    beginnings = (*_keys(model), *model.prefixes())
    names = {name: key for name, key in model.older_names.items() if key.removesuffix("*") in beginnings}
    parts = {field.alias or "": _group(field).replaced_by for field in model.model_fields.values()}
    return names | {name: key for name, key in parts.items() if key}


def _row(model: type[Settings], field: FieldInfo) -> Row:
    assert field.alias
    is_prefix = f"{field.alias}." in model.prefixes()
    text = _cell(model.texts()[field.alias])
    key = f"`{field.alias}.*`" if is_prefix else f"`{field.alias}`"
    if field.alias in model.listed:
        key = f"`{field.alias}`, {key}"
    return key, text, "" if is_prefix else _values(field), _default(field)


def _values(field: FieldInfo) -> str:
    """Return which values a key may have."""
    kind: Any = field.annotation
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(k for k in get_args(kind) if k is not type(None))
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind) if value)
    choice = next((m.pattern for m in field.metadata if hasattr(m, "pattern")), "")
    if choice:
        return ", ".join(f"`{value}`" for value in choice.strip("^()$").split("|"))
    return "list" if get_origin(kind) is tuple else _bounds(field) or _NAMES[kind]


_NAMES = {str: "text", int: "number", bool: "`true`, `false`", Path: "path", SecretStr: "secret"}


def _bounds(field: FieldInfo) -> str:
    """Return the least and the greatest value of a number: `1–65535`, or `≥ 1`."""
    lower = [m.ge for m in field.metadata if isinstance(m, annotated_types.Ge)]
    lower += [m.gt + 1 for m in field.metadata if isinstance(m, annotated_types.Gt)]  # type: ignore[operator]
    upper = [m.le for m in field.metadata if isinstance(m, annotated_types.Le)]
    upper += [m.lt - 1 for m in field.metadata if isinstance(m, annotated_types.Lt)]  # type: ignore[operator]
    assert lower or not upper
    if not lower:
        return ""
    return f"{max(lower)}–{min(upper)}" if upper else f"≥{max(lower)}"  # type: ignore[type-var]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.default
    if isinstance(value, tuple):
        value = ",".join(value)
    if isinstance(value, bool):
        value = str(value).lower()
    return "" if value in ("", None, {}) else f"`{value}`"


def _keys(model: type[Settings]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _group(field: FieldInfo) -> Group:
    return next(m for m in field.metadata if isinstance(m, Group))


def _aliases(model: type[Settings]) -> dict[str, Alias]:
    return {key: Alias(alias) if isinstance(alias, str) else alias for key, alias in model.aliases.items()}


def debezium_keys() -> str:
    """The tables of Debezium's keys: those that set keys of ours, and those that mean nothing here."""
    used = "| theirs | the agent's | the worker's and the connector's | |\n|---|---|---|---|\n"
    for key, translation in debezium.KEYS.items():
        if translation.is_used:
            sides = (
                _uses(translation.agent),
                ", ".join(filter(None, (_uses(translation.worker), _uses(translation.connector)))),
            )
            used += f"| `{key}` | {' | '.join(sides)} | {translation.why} |\n"
    unused = {key: translation.why for key, translation in debezium.KEYS.items() if not translation.is_used}
    named = "| theirs | means nothing here: |\n|---|---|\n"
    for why in dict.fromkeys(unused.values()):
        named += f"| {', '.join(f'`{key}`' for key in unused if unused[key] == why)} | {why} |\n"
    return f"{used}\n{named}"


def _uses(use: Mapping[str, Any]) -> str:
    """Keys of ours, with what their values become."""
    shown = (key if callable(value) or value == "VALUE" else f"{key}={value}" for key, value in use.items())
    return ", ".join(f"`{text}`" for text in shown)


def datastax_keys() -> str:
    """The tables of DataStax's keys: the agent's arguments, with their variables, and the source connector's."""
    variables = {argument: variable for variable, argument in ENVIRONMENT.items()}
    shown = "### The agent's arguments\n| theirs | variable | here | |\n|---|---|---|---|\n"
    for key, alias in _aliases(AgentSettings).items():
        variable = f"`{variables[key]}`" if key in variables else ""
        why = alias.why
        if key in ON_PULSAR:
            other = ON_PULSAR[key]
            pulsar = Alias(other) if isinstance(other, str) else other
            why = ". ".join(
                filter(None, (why, f"On Pulsar {f'`{pulsar.use}`: ' if pulsar.use else ''}{pulsar.why}".strip(": ")))
            )
        shown += f"| `{key}` | {variable} | {f'`{alias.use}`' if alias.use else ''} | {why} |\n"
    shown += "\n### The source connector's keys\n| theirs | here | |\n|---|---|---|\n"
    for key in DATASTAX:
        alias = _aliases(ConnectorSettings)[key]
        shown += f"| `{key}` | {f'`{alias.use}`' if alias.use else ''} | {alias.why} |\n"
    return shown


ROOT = Path(__file__).resolve().parents[1]
LEVELS = {"error": "### Errors", "warning": "### Warnings", "info": "### Info", "debug": "### Debug"}
"""Of a log event, the highest first, with their headings. A call of `exception` logs an error."""


def monitoring(page: str) -> str:
    """Return the text of monitoring.md with its tables of metrics, alerts and log events as the code has them.

    The last column of alerts and log events, such as what to do, is written by hand and kept by the name in the first
    one; of a new name it is empty. Log events of one level with the same text share a row. Raises ValueError if the
    page says something of a name that the code does not have any more.
    """
    tables: dict[str, list[Row]] = {
        "### Of the agent": _metric_rows((), agent_metrics),
        "### Of the connector": _metric_rows(TABLE_LABELS, connector_metrics, snapshot_metrics, verify_metrics),
    }
    lines = page.splitlines()
    names: dict[str, list[Row]] = {"## Alerts": _alert_rows(), **_log_events()}
    notes: dict[str, str] = {}
    for heading in names:
        for line in lines[_table_of(lines, heading)]:
            first, *_, note = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
            notes.update(dict.fromkeys(first.split(", "), note))
    current = {row[0] for rows in names.values() for row in rows}
    if gone := [name for name, note in notes.items() if note and name not in current]:
        raise ValueError(f"the code does not have {', '.join(gone)}: rename or remove these rows of monitoring.md")
    for heading, rows in names.items():
        shared: dict[Row, list[str]] = {}
        for name, *cells in rows:
            shared.setdefault((*cells, notes.get(name, "")), []).append(name)
        tables[heading] = [(", ".join(row_names), *cells) for cells, row_names in shared.items()]
    for heading, rows in tables.items():
        lines[_table_of(lines, heading)] = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _table_of(lines: Sequence[str], heading: str) -> slice:
    """Return where the rows of the first table below this heading are."""
    after = range(lines.index(heading), len(lines))
    start = next(i for i in after if lines[i].startswith("|---")) + 1
    return slice(start, next((i for i in range(start, len(lines)) if not lines[i].startswith("|")), len(lines)))


TABLE_LABELS = ("connector", "keyspace", "table")
"""The labels of most of the connector's metrics."""


def _metric_rows(usual_labels: tuple[str, ...], *modules: types.ModuleType) -> list[Row]:
    """Return of each metric its name as it is exported, with its labels if they are not the usual ones, and its help.

    `{…,kind}` has the usual labels and `kind`. Types that the name does not tell are named.
    """
    rows: list[Row] = []
    for metric in (m for module in modules for m in vars(module).values() if isinstance(m, MetricWrapperBase)):
        kind = metric._type or ""
        name = metric._name + {"counter": "_total", "info": "_info"}.get(kind, "")
        labels = ",".join(metric._labelnames)
        if usual_labels:
            labels = re.sub(f"^{','.join(usual_labels)}", "…", labels)
        is_usual = metric._labelnames == usual_labels
        text = _cell(metric._documentation) + (" Histogram." if kind == "histogram" else "")
        rows.append((f"`{name}`" if is_usual else f"`{name}{{{labels}}}`", text))
    return rows


def _alert_rows() -> list[Row]:
    """Return name, severity, and expression with its duration of each alert."""
    groups = yaml.safe_load((ROOT / "compose" / "observability" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    rows: list[Row] = []
    for rule in (rule for group in groups for rule in group["rules"]):
        duration = f" for {rule['for']}" if "for" in rule else ""
        rows.append((f"`{rule['alert']}`", rule["labels"]["severity"], f"`{_cell(rule['expr'])}`{duration}"))
    return rows


def _log_events() -> dict[str, list[Row]]:
    """Return the names of the events that are logged, by the heading of the highest level of each."""
    levels: dict[str, set[str]] = {}
    for package in ("agent", "connector", "schemas", "sinks"):
        for path in (ROOT / package).glob("helenus_*/**/*.py"):
            for event, level in _logged(ast.parse(path.read_text(encoding="utf-8"))):
                levels.setdefault(event, set()).add(level)
    events: dict[str, list[Row]] = {heading: [] for heading in LEVELS.values()}
    for event in sorted(levels):
        heading = next(heading for level, heading in LEVELS.items() if level in levels[event])
        events[heading].append((f"`{event}`",))
    return events


def _logged(module: ast.Module) -> Iterator[tuple[str, str]]:
    """The events that a module logs, with the level of each call."""
    for call in (node for node in ast.walk(module) if isinstance(node, ast.Call) and node.args):
        level = call.func.attr.replace("exception", "error") if isinstance(call.func, ast.Attribute) else ""
        for part in ast.walk(call.args[0]) if level in LEVELS else ():
            # An event's name is what no other text of such a call is: two words with a dot between.
            if isinstance(part, ast.Constant) and re.fullmatch(r"[a-z_-]+\.[a-z_-]+", str(part.value)):
                yield str(part.value), level


def _cell(text: str) -> str:
    """Return a text for a cell of a table. A page that it names, `docs/PAGE.md#heading`, becomes a link."""
    text = re.sub(r"docs/([\w-]+\.md)(#[\w-]+)?", r"[\1](\1\2)", text)
    return " ".join(text.split()).replace("|", "\\|")


def _write_between(name: str, start: str, text: str) -> None:
    """Write what stands in a page from `start` to the next heading of the second level again."""
    path = Path(__file__).with_name(name)
    before, _, old = path.read_text(encoding="utf-8").partition(start)
    *_, after = old.partition("\n## ")
    path.write_text(f"{before}{text}\n## {after}", encoding="utf-8")


if __name__ == "__main__":
    Path(__file__).with_name("configuration.md").write_text(page(), encoding="utf-8")
    _write_between("debezium.md", "| theirs | the agent's |", debezium_keys())
    _write_between("datastax.md", "### The agent's arguments", datastax_keys())
    monitoring_page = Path(__file__).with_name("monitoring.md")
    monitoring_page.write_text(monitoring(monitoring_page.read_text(encoding="utf-8")), encoding="utf-8")
