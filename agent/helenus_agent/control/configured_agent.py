"""An agent that follows the configuration in Cassandra: it runs as long as that stays, and anew when it is another one.

A run is ended at a commit, as by a stop, and the next one begins at the positions that it saved: so a change of the
configuration, whatever it is, loses nothing. The process goes on even if a run fails: over its REST API, or another
agent's, the configuration can be corrected.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from pathlib import Path

import structlog

from helenus_agent import metrics
from helenus_agent.agent import STARTING
from helenus_agent.agent_run import AgentRun
from helenus_agent.config import AgentSettings
from helenus_agent.control import _saved_configs
from helenus_agent.control._agent_reporter import AgentCondition, AgentReporter
from helenus_agent.control._config_follower import ConfigFollower
from helenus_agent.control._config_store import ConfigStore
from helenus_agent.control._idle_watch import IdleWatch
from helenus_agent.control._rest_resources import ControlApi
from helenus_agent.control._service_configs import effective_config
from helenus_agent.node_yaml import read_yaml
from helenus_agent.own_properties import OwnProperties
from helenus_agent.state import StateDirectory
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import logs
from helenus_schemas.service.monitoring import HttpAnswer, HttpRequest

_FIRST_READ_S = 15.0  # s that the start waits for the table, before it goes by the saved rows
_LOOK_S = 1.0  # s between two looks at cdc_raw while publishing is disabled
_FIRST_RETRY_S, _LONGEST_RETRY_S = 1.0, 10.0  # s before a run that failed is begun anew
_log = structlog.get_logger(__name__)


class ConfiguredAgent:
    """An agent's process. One thread calls `run`, which ends with `stop` and `hurry`; others call `ready`, `answer`."""

    def __init__(self, own: OwnProperties, settings: AgentSettings) -> None:
        self.stop = threading.Event()
        self._settings = settings
        self._store = ConfigStore(settings)
        poll_interval_s = settings.config_store_poll_interval_ms / 1000
        self._follower = ConfigFollower(own, self._store, settings.state_dir, poll_interval_s)
        self._reporter = AgentReporter(settings, self._store, self.condition)
        self._api = ControlApi(self._follower, self._store)
        self._watch = IdleWatch()
        self._agent_run: AgentRun | None = None
        self._failure = ""
        self._retry_s = _FIRST_RETRY_S

    def run(self) -> None:
        """Publish as the configuration says, until `stop`."""
        self._follower.start()
        self._reporter.start()
        deadline = time.monotonic() + _FIRST_READ_S
        while not (self._follower.is_polled or self.stop.is_set() or time.monotonic() > deadline):
            time.sleep(0.02)
        while not self.stop.is_set():
            self._follower.changed.clear()
            if self.stop.is_set():  # by a signal between the two
                break
            config = self._follower.config
            metrics.DISABLED.set(config.settings is None)
            if config.settings is None:
                self._failure = ""
                self._idle(config.reason)
            else:
                self._publish(config.settings)

    def hurry(self, seconds: float) -> None:
        """End what is under way within so many seconds. A signal handler calls it, once `stop` is set."""
        self._follower.changed.set()
        if (agent_run := self._agent_run) is not None:
            agent_run.hurry(seconds)

    def close(self) -> None:
        """Let go of Cassandra."""
        self._follower.close()
        self._reporter.close()
        self._store.close()

    def ready(self) -> str | None:
        """Return why the agent fails to do what it is configured to do, None if it does: also while publishing is
        disabled, or a row is wrong and the last ones that were right are used. An agent beside its node in a pod must
        not take that node out of service for a row; `condition`, the metrics and the log say it.
        """
        config = self._follower.config
        if config.settings is None:
            return None if config.is_known else self._trouble()
        agent_run = self._agent_run
        return self._failure or (agent_run.ready() if agent_run else STARTING)

    def _trouble(self) -> str:
        config = self._follower.config
        if config.settings is None:
            return "; ".join(filter(None, (config.reason, self._follower.trouble)))
        if self._follower.refusal:
            refusal = f"{self._follower.refusal}; the last configuration that was right is used"
            return "; ".join(filter(None, (self.ready(), refusal)))
        return self.ready() or self._follower.trouble

    def condition(self) -> AgentCondition:
        """Return how the agent is, for its report."""
        agent_run = self._agent_run
        agent = agent_run.agent if agent_run else None
        trouble = self._trouble()
        if self._follower.config.settings is None:
            return AgentCondition("disabled", trouble, ())
        reason = self._failure or (agent_run.ready() if agent_run else STARTING)
        condition = {None: "publishing", STARTING: "starting"}.get(reason, "failing")
        return AgentCondition(condition, trouble, agent.table_names if agent else ())

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer a request to the REST API."""
        return self._api.answer(request)

    def _publish(self, settings: AgentSettings) -> None:
        """Run the agent until the configuration changes. If that fails, wait before the next run."""
        logs.configure(settings.log_level, settings.log_format)
        try:
            self._agent_run = AgentRun(settings, self._follower.changed)
            self._failure = ""
            self._agent_run.run()
            self._retry_s = _FIRST_RETRY_S
        except Exception as error:  # of any kind: the configuration that made it can be corrected
            if isinstance(error, HelenusError) and error.kind is Kind.NOT_OWNER:
                raise  # no configuration changes that: a new run would take the state from the other agent again
            is_ours = isinstance(error, HelenusError)
            self._failure = str(error) if is_ours else f"{type(error).__name__}: {error}"
            kind = error.kind if isinstance(error, HelenusError) else Kind.CONFIG
            self._reporter.note_error(self._failure)
            _log.error("agent.failed", kind=kind.value, error=self._failure, wait_s=self._retry_s)
            self._watch.look(self._raw_directory(), self._reporter.node)
            if not self._follower.changed.wait(self._retry_s):
                self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)
        finally:
            self._agent_run = None
            # A run has the collector pass over what there is when it begins, and the next one makes all of it anew.
            gc.unfreeze()
            gc.collect()

    def _idle(self, reason: str) -> None:
        """Wait for another configuration. What the node logs stays in cdc_raw."""
        then = "segments stay in cdc_raw; at cdc_total_space the node refuses writes to tables with CDC"
        _log.warning("agent.idle", reason=reason, then=then)
        with contextlib.ExitStack() as cleanup:
            try:
                cleanup.callback(StateDirectory(self._settings.state_dir).close)
            except HelenusError as error:
                _log.warning("agent.idle", reason=str(error))
            while not self._follower.changed.wait(_LOOK_S):
                self._watch.look(self._raw_directory(), self._reporter.node)

    def _raw_directory(self) -> Path | None:
        if self._settings.cdc_raw_dir is not None:
            return self._settings.cdc_raw_dir
        directory = None
        if self._settings.cassandra_config is not None:
            with contextlib.suppress(HelenusError):
                directory = read_yaml(self._settings.cassandra_config).get("cdc_raw_directory")
        if directory is None and (node := self._reporter.node) is not None:
            directory = node.settings.get("cdc_raw_directory")
        return Path(str(directory)) if directory else None


def read_effective_settings(own: OwnProperties, settings: AgentSettings) -> AgentSettings:
    """Return the settings that an agent with these own properties has now: by `configs`, or while that can't be read by
    what was saved of it. Raises HelenusError, also where publishing is disabled.
    """
    with contextlib.closing(ConfigStore(settings)) as store:
        try:
            rows = store.read() or _saved_configs.load(settings.state_dir) or {}
        except HelenusError:
            saved = _saved_configs.load(settings.state_dir)
            if saved is None:
                raise
            rows = saved
    config = effective_config(own, rows)
    if config.settings is None:
        advice = "configure it over the REST API of an agent, or in the agent's file"
        raise HelenusError(Kind.CONFIG, config.reason, f"{settings.config_store_keyspace}.configs", advice)
    return config.settings
