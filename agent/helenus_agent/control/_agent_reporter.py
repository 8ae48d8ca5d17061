"""Writes the agent's row of `agents` every some seconds, so that an agent that is dead shows as one."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from helenus_agent import metrics
from helenus_agent.agent_run import node_address
from helenus_agent.config import AgentSettings
from helenus_agent.control._config_store import AgentReport, ConfigStore
from helenus_agent.node.cassandra import Cassandra, Node
from helenus_schemas import __version__
from helenus_schemas.errors import HelenusError

_ASK_S = 300.0  # s after which the node is asked again: it may be upgraded, or have another limit of cdc_raw
_MAX_TABLES = 1000
_MAX_CHARACTERS = 2000
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class AgentCondition:
    """How an agent is: `status` as of `AgentReport`, why it is not healthy or "", and the tables that it follows."""

    status: str
    trouble: str
    tables: tuple[str, ...]


class AgentReporter:
    """Writes what `condition` returns, in a thread of its own. `node` is the agent's node, None until it answered."""

    def __init__(self, settings: AgentSettings, store: ConfigStore, condition: Callable[[], AgentCondition]) -> None:
        self.node: Node | None = None
        self._settings = settings
        self._store = store
        self._condition = condition
        self._asked_at = -math.inf
        self._last_error = ""
        self._failure = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_all, name="reports", daemon=True)

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def close(self) -> None:
        """Stop reporting."""
        self._closing.set()
        self._thread.join(1)

    def note_error(self, error: str) -> None:
        """Remember an error as the last one."""
        self._last_error = error

    def read_node(self) -> None:
        """Read who the node is, if that is due. Raises HelenusError."""
        if self.node is None or time.monotonic() > self._asked_at + _ASK_S:
            with contextlib.closing(Cassandra(self._settings)) as cassandra:
                self.node = cassandra.node()
            self._asked_at = time.monotonic()

    def _write_all(self) -> None:
        while not self._closing.is_set():
            try:
                self.read_node()
                self._write()
                self._failure = ""
            except HelenusError as error:
                if str(error) != self._failure:
                    _log.warning("report.failed", error=str(error), then="it is written again at the next interval")
                self._failure = str(error)
            except Exception as error:  # it has to go on
                _log.error("report.failed", error=f"{type(error).__name__}: {error}")
            self._closing.wait(self._settings.config_store_report_interval_ms / 1000)

    def _write(self) -> None:
        node, condition = self.node, self._condition()
        assert node is not None
        if condition.trouble and condition.status in ("publishing", "failing"):
            self._last_error = condition.trouble
        headroom = metrics.total(metrics.RAW_HEADROOM)
        self._store.report(
            AgentReport(
                node.host_id,
                node_address(node, self._settings),
                node.data_center,
                __version__,
                node.release,
                condition.status,
                condition.trouble[:_MAX_CHARACTERS],
                condition.tables[:_MAX_TABLES],
                int(metrics.total(metrics.OLDEST) * 1000),
                int(metrics.total(metrics.PENDING)),
                int(metrics.total(metrics.RAW_BYTES)),
                None if math.isnan(headroom) else int(headroom),
                self._last_error[:_MAX_CHARACTERS],
                self._settings.config_store_report_interval_ms,
            )
        )
