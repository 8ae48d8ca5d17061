"""The state of an agent, from its state file, cdc_raw and, if it serves them, its metrics. The process is not asked."""

from __future__ import annotations

import base64
import http.client
import time
import urllib.error
import urllib.request
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from helenus_agent import state
from helenus_agent.commitlog.segment_name import parse_name
from helenus_agent.commitlog.segment_source import read_index
from helenus_agent.config import AgentSettings
from helenus_agent.node.cassandra import Node
from helenus_agent.node_directories import raw_directory
from helenus_agent.node_yaml import read_yaml
from helenus_agent.positions import Positions, SegmentMark
from helenus_agent.segments.reprocess import list_quarantined
from helenus_schemas.errors import HelenusError
from helenus_schemas.names import counted
from helenus_schemas.service.listener_tls import own_tls

_TIMEOUT = 2.0
_PREFIX = "helenus_agent_"
_CONFIG_TROUBLE = {
    "publishing_disabled": "publishing is disabled: GET /api/v1/cdc/agents says why",
    "config_refused": "a row of configs is refused, and the last right ones are used: the log has why",
}
"""By metric, what is in the configuration in Cassandra while the agent is healthy."""


@dataclass(frozen=True)
class SegmentStatus:
    """A segment in cdc_raw, or one that the state knows. `size` and `position` in bytes; `size` None: no file."""

    id: int
    size: int | None
    position: int
    indexed: bool
    complete: bool
    done: bool
    bad: bool


@dataclass(frozen=True)
class AgentStatus:
    """What there is to know. `trouble`: why it is not healthy, empty if it is. Ages in s, sizes in bytes.

    `metrics`: the agent's own, without their common prefix; a labelled one as `name{label}`. Empty if it serves none.
    """

    running: bool
    trouble: list[str]
    host_id: str | None
    state_dir: str
    saved_age: float | None
    raw_dir: str | None
    raw_bytes: int
    raw_limit: int | None
    segments: list[SegmentStatus]
    done: int
    quarantined: list[str]
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def healthy(self) -> bool:
        return not self.trouble

    @property
    def raw_headroom(self) -> int | None:
        """Return bytes until the node refuses writes to tables with CDC."""
        return None if self.raw_limit is None else max(0, self.raw_limit - self.raw_bytes)

    def as_json(self) -> dict[str, Any]:
        """Return the same for `json`."""
        return {"healthy": self.healthy, **asdict(self), "raw_headroom": self.raw_headroom}


def read_status(settings: AgentSettings) -> AgentStatus:
    """Look at an agent's state. Nothing that it may leave on its disk raises an error: it is shown as `trouble`.

    Raises HelenusError(STATE) where this user can't see whether an agent runs.
    """
    trouble: list[str] = []
    running = state.is_held(settings.state_dir)
    if not running:
        trouble.append("no agent runs on this state.dir")
    saved = None
    try:
        saved = state.read(settings.state_dir)
    except HelenusError as error:
        trouble.append(str(error))
    raw = None
    try:
        raw = raw_directory(settings)
    except HelenusError as error:
        trouble.append(str(error))
    segments = _read_segments(raw, saved or Positions())
    quarantined_paths: list[str] = []
    try:
        quarantined_paths = [str(path) for path in list_quarantined(settings.state_dir)]
    except HelenusError as error:
        trouble.append(str(error))
    if quarantined_paths:
        trouble.append(
            f"in quarantine: {counted(len(quarantined_paths), 'segment')}; helenus-agent reprocess puts them back"
        )
    trouble += [f"segment {segment.id} could not be read wholly" for segment in segments if segment.bad]
    metrics: dict[str, float] = {}
    if running and settings.listener[1]:
        metrics = _fetch_metrics(settings, trouble)
    trouble += [reason for name, reason in _CONFIG_TROUBLE.items() if metrics.get(name)]
    saved_at = state.saved_at(settings.state_dir)
    limit = metrics.get("cdc_raw_limit_bytes") or _configured_limit(settings)
    return AgentStatus(
        running=running,
        trouble=trouble,
        host_id=saved.host_id if saved else None,
        state_dir=str(settings.state_dir),
        saved_age=None if saved_at is None else max(0.0, time.time() - saved_at),
        raw_dir=str(raw) if raw else None,
        raw_bytes=sum(segment.size or 0 for segment in segments),
        raw_limit=int(limit) if limit else None,
        segments=segments,
        done=len(saved.done) if saved else 0,
        quarantined=quarantined_paths,
        metrics=metrics,
    )


def _read_segments(raw: Path | None, saved: Positions) -> list[SegmentStatus]:
    files = {parsed[1]: path for path in raw.glob("*.log") if (parsed := parse_name(path.name))} if raw else {}
    statuses = []
    for number in sorted(files.keys() | saved.segments.keys()):
        mark = saved.segments.get(number, SegmentMark(0))
        size, index = None, None
        if number in files:
            index = read_index(files[number])
            try:
                size = files[number].stat().st_size
            except OSError:
                if number not in saved.segments:
                    continue  # deleted meanwhile
        statuses.append(
            SegmentStatus(
                id=number,
                size=size,
                position=mark.offset,
                indexed=mark.indexed or index is not None,
                complete=index is not None and index[1],
                done=number in saved.done,
                bad=mark.bad,
            )
        )
    return statuses


def _configured_limit(settings: AgentSettings) -> int | None:
    """Return what the node's cassandra.yaml says that cdc_raw may take; without that the node computes it from the
    disk.
    """
    if settings.cassandra_config is None:
        return None
    try:
        yaml = read_yaml(settings.cassandra_config)
    except HelenusError:
        return None
    named = {key: str(value) for key, value in yaml.items() if key.startswith("cdc")}
    return Node(uuid.UUID(int=0), "", named).raw_limit


def _fetch_metrics(settings: AgentSettings, trouble: list[str]) -> dict[str, float]:
    """Return what the running agent serves, and what it says of its health."""
    host, port = settings.listener
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if settings.secure else "http"
    base = f"{scheme}://[{reached}]:{port}" if ":" in reached else f"{scheme}://{reached}:{port}"
    text = ""
    try:
        text = _fetch(settings, f"{base}/metrics")
        _fetch(settings, f"{base}/health/ready")
    except urllib.error.HTTPError as error:
        with error:
            trouble.append(error.read().decode(errors="replace").strip())
    except (OSError, http.client.HTTPException, HelenusError) as error:
        trouble.append(f"{base} does not answer: {error}")
        return {}
    values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(_PREFIX) and "le" not in sample.labels:
                labels = ",".join(sample.labels.values())
                values[sample.name.removeprefix(_PREFIX) + (f"{{{labels}}}" if labels else "")] = sample.value
    return values


def _fetch(settings: AgentSettings, url: str) -> str:
    request = urllib.request.Request(url)
    if (secret := settings.rest_basic_auth_user_info) is not None:
        login = base64.b64encode(secret.get_secret_value().encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {login}")  # for the agent alone, as without a proxy
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if settings.secure:
        handlers.append(urllib.request.HTTPSHandler(context=own_tls(settings)))
    with urllib.request.build_opener(*handlers).open(request, timeout=_TIMEOUT) as answer:
        return str(answer.read().decode())


def format_status(status: AgentStatus) -> str:
    """Format a status as a table for people."""
    metrics, age = status.metrics, status.saved_age
    lines = [
        ("agent", ("running" if status.running else "stopped") + ("" if status.trouble else ", healthy")),
        ("node", status.host_id or "unknown"),
        ("state", f"{status.state_dir}, {'never saved' if age is None else f'saved {_format_age(age)} ago'}"),
        ("cdc_raw", f"{status.raw_dir or 'unknown'}, {_format_raw_usage(status)}"),
        ("done", f"{counted(status.done, 'segment')} lately"),
        ("quarantined", ", ".join(status.quarantined) or "none"),
    ]
    events = sum(value for name, value in metrics.items() if name.startswith("events_total"))
    if metrics:
        lines += [
            ("events", f"{events:,.0f} acknowledged since its start"),
            ("oldest unsent", _format_age(metrics.get("oldest_unsent_seconds", 0.0))),
            ("lost", counted(metrics.get("lost_segments_total", 0), "segment")),
        ]
    lines += [("trouble", text) for text in status.trouble]
    rows = [("SEGMENT", "SIZE", "POSITION", "STATE")]
    for segment in status.segments:
        size = "gone" if segment.size is None else _format_size(segment.size)
        rows.append((str(segment.id), size, str(segment.position), _format_state(segment)))
    widths = [max(len(row[n]) for row in rows) for n in range(3)]
    body = [f"{r[0]:<{widths[0]}}  {r[1]:>{widths[1]}}  {r[2]:>{widths[2]}}  {r[3]}" for r in rows]
    return "\n".join([*(f"{name:<14} {text}" for name, text in lines), "", *body])


def _format_state(segment: SegmentStatus) -> str:
    words = {
        "done": segment.done,
        "bad": segment.bad,
        "complete": segment.complete,
        "with changes": segment.indexed and not segment.complete,
    }
    return ", ".join(word for word, is_so in words.items() if is_so) or "no changes yet"


def _format_raw_usage(status: AgentStatus) -> str:
    if status.raw_limit is None or status.raw_headroom is None:
        source = "an agent with listeners" if status.metrics or status.running else "a running agent"
        advice = f"{source} reports it, or cdc_total_space in the file of cassandra.config"
        return f"{_format_size(status.raw_bytes)}, limit unknown: {advice}"
    used, limit, headroom = map(_format_size, (status.raw_bytes, status.raw_limit, status.raw_headroom))
    return f"{used} of {limit} ({status.raw_bytes / status.raw_limit:.0%}), {headroom} left"


def _format_size(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"


def _format_age(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
