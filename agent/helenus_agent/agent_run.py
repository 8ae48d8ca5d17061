"""A run of the agent with one configuration: from the log that it opens to the locks that it lets go of."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from prometheus_client import REGISTRY
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_fixed
from tenacity.nap import sleep_using_event

from helenus_agent import metrics
from helenus_agent.agent import STARTING, Agent
from helenus_agent.commitlog import decoder
from helenus_agent.config import AgentSettings
from helenus_agent.delivery.change_spans import ChangeSpans
from helenus_agent.node import identity
from helenus_agent.node.cassandra import Cassandra, Node
from helenus_agent.node.offline import SavedNode
from helenus_agent.node_directories import check_places, raw_directory
from helenus_agent.segments.segment_queue import list_segment_ids
from helenus_agent.segments.transfer import transfer_of
from helenus_agent.state import StateDirectory, note_cdc_off, owned
from helenus_agent.state_store.state_store import StateStore
from helenus_agent.transient import may_pass
from helenus_schemas import __version__
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.span_exporter import SpanQueue, check_traces, traced_ratio
from helenus_schemas.settings.shared import NO_PULSAR
from helenus_sinks.kafka.log import KafkaLog

if TYPE_CHECKING:
    from helenus_sinks.pulsar.log import PulsarLog

_RETRY_S = 1.0  # s between two tries to reach a server at the start
_REPORT_S = 30.0  # s between two log lines that say why it waits
_PRODUCER = {"queue.buffering.max.messages": "20000"}  # takes 8 MB less than a connector's 50,000, and is as fast
_log = structlog.get_logger(__name__)


class AgentRun:
    """An agent, and all that it holds while it runs. `stop` ends it. Raises HelenusError for a wrong configuration.

    `agent` is None until it is made. `offline`: without Cassandra.
    """

    def __init__(
        self, settings: AgentSettings, stop: threading.Event, drain: bool = False, offline: bool = False
    ) -> None:
        self.agent: Agent | None = None
        self._settings = settings
        self._stop = stop
        self._drain = drain
        self._offline = offline
        check_traces(settings)
        self._sink = open_log(settings)

    def ready(self) -> str | None:
        """Return why the agent is not healthy, None if it is."""
        return self.agent.ready() if self.agent else STARTING

    def hurry(self, seconds: float) -> None:
        """End all waiting for the broker within so many seconds. A signal handler may call it."""
        self._sink.hurry(seconds)

    def run(self) -> str | None:
        """Run the agent until `stop`; with `drain`, until everything in cdc_raw is acknowledged. Return why something
        is not, or None. Raises HelenusError.
        """
        settings = self._settings
        waiting = _startup_retries(settings.startup_timeout_ms / 1000, self._stop)
        with contextlib.ExitStack() as cleanup, contextlib.closing(self._sink):
            try:
                if settings.log == "kafka":
                    # A producer needs up to a second before its first record: Cassandra is asked meanwhile.
                    self._sink.start()
                node, directory, agent = self._make_agent(waiting, cleanup)
                self.agent = agent
                cleanup.callback(agent.close)
                waiting(agent.start)
                if settings.log == "pulsar":
                    self._sink.start()
                self._show(node, directory, cleanup)
                # Batches come and go by the thousand and hold no cycles: let the collector look less often.
                gc.freeze()
                gc.set_threshold(100_000, 20, 20)
                agent.run(self._stop, self._drain)
                _log.info("agent.drained" if agent.drained else "agent.stopped")
                return agent.ready() if agent.drained else "it was stopped"
            except HelenusError as error:
                if not self._stop.is_set() or not is_startup_error(error):
                    raise
                _log.info("agent.stopped", waited_for=str(error))
                return "it was stopped"

    def _make_agent(self, waiting: Retrying, cleanup: contextlib.ExitStack) -> tuple[Node, Path, Agent]:
        """Return the node, its cdc_raw and its agent. cdc_raw and the state directory are held until `cleanup` ends."""
        settings = self._settings
        if settings.cassandra_config is None and settings.cdc_raw_dir is None:
            settings = waiting(with_raw_directory, settings)
        directory = waiting(_raw_directory, settings, self._offline)  # a new node makes it at its first start
        check_places(settings, directory, {})
        transfer = transfer_of(settings.segment_transfer, settings.segment_archive_dir)
        state = StateDirectory(settings.state_dir)
        cleanup.callback(state.close)
        cleanup.enter_context(owned(directory))
        cassandra = SavedNode(state) if self._offline else waiting(Cassandra, settings)
        cleanup.callback(cassandra.close)
        node = waiting(cassandra.node)
        identity.check(node, settings, directory)
        check_places(settings, directory, node.settings)
        segment_ids, store = list_segment_ids(directory), None
        if settings.state_store == "cassandra" and not self._offline:
            store = StateStore(settings, state, node, directory, segment_ids)
            cleanup.callback(store.close)
            waiting(store.start)
        positions = state.load(str(node.host_id), node.cluster, segment_ids)
        spans = self._open_spans(cleanup)
        agent = Agent(settings, directory, cassandra, self._sink, state, positions, transfer, spans, store)
        return node, directory, agent

    def _open_spans(self, cleanup: contextlib.ExitStack) -> ChangeSpans | None:
        """Return what traces changes, if traces are switched on. What is in its queue goes when `cleanup` ends."""
        ratio = traced_ratio(self._settings)
        if ratio is None:
            return None
        queue = SpanQueue(self._settings, "helenus-agent", metrics.SPANS)
        cleanup.callback(queue.close)
        return ChangeSpans(queue, ratio, self._settings.log, self._settings.topic_prefix)

    def _show(self, node: Node, directory: Path, cleanup: contextlib.ExitStack) -> None:
        """Show in metrics and log what runs here."""
        metrics.NODE.info(
            {
                "version": __version__,
                "address": node_address(node, self._settings),
                "host_id": str(node.host_id),
                "data_center": node.data_center,
                "cassandra": node.release,
            }
        )
        metrics.DECODER.info({"compiled": str(decoder.COMPILED).lower()})
        if self._settings.metrics_other_products:
            aliases = metrics.AgentMetricAliases(directory, self._settings.topic_prefix)
            REGISTRY.register(aliases)
            cleanup.callback(REGISTRY.unregister, aliases)
        _log.info(
            "agent.started",
            version=__version__,
            decoder="compiled" if decoder.COMPILED else "plain",
            node=str(node.host_id),
            cassandra=node.release,
            directory=str(directory),
        )


def node_address(node: Node, settings: AgentSettings) -> str:
    """Return the address by which others know a node."""
    address = node.addresses.get("broadcast_address") or node.addresses.get("listen_address")
    return address or settings.cassandra_contact_points[0]


def with_raw_directory(settings: AgentSettings) -> AgentSettings:
    """Return settings with the `cdc_raw` that the node itself names. Raises HelenusError."""
    with contextlib.closing(Cassandra(settings)) as cassandra:
        directory = cassandra.node().settings.get("cdc_raw_directory")
    if not directory:
        advice = "set cassandra.config or cdc.raw.dir, or GRANT SELECT ON system_views.settings TO its role"
        raise HelenusError(
            Kind.CONFIG, "the node does not say where cdc_raw is", settings.cassandra_contact_points[0], advice
        )
    return settings.model_copy(update={"cdc_raw_dir": Path(directory)})


def open_log(settings: AgentSettings) -> KafkaLog | PulsarLog:
    """Return where events go. Raises HelenusError(CONFIG)."""
    if settings.log == "kafka":
        log = KafkaLog(
            {"bootstrap.servers": settings.bootstrap_servers, **_PRODUCER, **settings.kafka, **settings.producer}
        )
        log.replication_factor = settings.topic_creation_default_replication_factor
        return log
    check_pulsar(settings)
    from helenus_sinks.pulsar.config import PulsarConfig
    from helenus_sinks.pulsar.log import PulsarLog

    return PulsarLog(PulsarConfig.from_settings(settings))


def check_pulsar(settings: AgentSettings) -> None:
    """Raise HelenusError(CONFIG) for log=pulsar without the extra `pulsar`."""
    if settings.log != "pulsar":
        return
    try:
        import helenus_sinks.pulsar.log  # noqa: F401
    except ImportError as error:
        raise HelenusError(Kind.CONFIG, f"log=pulsar: {error}", advice=NO_PULSAR) from None


def is_startup_error(error: BaseException) -> bool:
    """True for errors that pass while a machine boots, or a node starts for the first time."""
    return may_pass(error) or (isinstance(error, HelenusError) and error.kind is Kind.CDC_DIRECTORY)


def _startup_retries(seconds: float, stop: threading.Event) -> Retrying:
    """Repeat a call until its server is up, `stop` is set, or so many seconds from now have passed."""
    deadline = time.monotonic() + seconds
    last = "", 0.0

    def report(state: RetryCallState) -> None:
        """Log why it waits: when that changes, and every half minute."""
        nonlocal last
        now, reason = time.monotonic(), str(state.outcome and state.outcome.exception())
        if reason != last[0] or now > last[1] + _REPORT_S:
            last = reason, now
            _log.info("agent.waiting", reason=reason, seconds_left=round(max(0.0, deadline - now)))

    return Retrying(
        retry=retry_if_exception(is_startup_error),
        stop=lambda _: stop.is_set() or time.monotonic() > deadline,
        wait=wait_fixed(_RETRY_S),
        sleep=sleep_using_event(stop),
        before_sleep=report,
        reraise=True,
    )


def _raw_directory(settings: AgentSettings, offline: bool = False) -> Path:
    """Return the node's cdc_raw. If CDC is off that is noted: writes until it is on again are a gap."""
    try:
        return raw_directory(settings, offline)
    except HelenusError as error:
        if error.kind is Kind.CDC_DISABLED:
            with contextlib.suppress(HelenusError):  # the error to report is why there is no start
                note_cdc_off(settings.state_dir)
        raise
