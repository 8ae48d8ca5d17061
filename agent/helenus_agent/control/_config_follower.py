"""Follows `configs`: reads it every some seconds, and says what the agent is to do now.

A change is first checked as a whole. If it is right, it is saved, and the run that goes by the previous configuration
is ended at its next commit; if it is wrong, that run goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import structlog

from helenus_agent import metrics
from helenus_agent.control import _saved_configs
from helenus_agent.control._config_store import ConfigStore
from helenus_agent.control._row_keys import SERVICES
from helenus_agent.control._service_configs import EffectiveConfig, Rows, check_service, effective_config
from helenus_agent.own_properties import OwnProperties
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.properties import ConfigError

_RECHECK_S = 30.0  # s after which wrong rows are checked again: a file or a variable that they refer to may be there
_UNREAD = "publishing is disabled: configs is not read yet"
_MARKER, _MARKER_CONFIG = "helenus", {"rows": "deleted"}
"""A row that a DELETE writes: with it, a table without the other rows is one that somebody emptied, and not a new one
in the place of one that is lost.
"""
_log = structlog.get_logger(__name__)


def describe(error: ConfigError) -> str:
    """Return what is wrong with rows, in one line."""
    return "; ".join(f"{problem.source}: {problem}" for problem in error.problems)


class ConfigFollower:
    """The configuration as it is now; a thread of its own reads it. `changed` is set when there is another one,
    `is_polled` once the table was asked.
    """

    def __init__(self, own: OwnProperties, store: ConfigStore, state_dir: Path, poll_interval_s: float) -> None:
        self._own = own
        self._store = store
        self._state_dir = state_dir
        self._interval_s = poll_interval_s
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._follow, name="configs", daemon=True)
        self._seen: Rows | None = None
        self._accepted: Rows | None = None
        self._saved: Rows | None = _saved_configs.load(state_dir)
        self._checked_at = 0.0
        self._was_missing = False
        self._read_error = ""
        self._row_error = ""
        self._save_error = ""
        self.is_polled = False
        self.changed = threading.Event()
        self._config = self._load_saved()

    @property
    def config(self) -> EffectiveConfig:
        """Return what the agent is to do."""
        with self._lock:
            return self._config

    @property
    def refusal(self) -> str:
        """Return what is wrong with the rows of the table, or why they can't be saved; empty if nothing is."""
        return self._row_error or self._save_error

    @property
    def trouble(self) -> str:
        """Return why the rows of the table are not used, not saved, or not known; empty if they are."""
        return self.refusal or self._read_error

    def start(self) -> None:
        """Begin to follow the table."""
        self._thread.start()

    def close(self) -> None:
        """Stop following it."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(1)

    def read(self) -> dict[str, dict[str, str]]:
        """Return the rows of our services in the table, as they are now. Raises HelenusError."""
        return {service: config for service, config in self._store.read().items() if service in SERVICES}

    def _read_known(self) -> dict[str, dict[str, str]]:
        """Return the rows as `read` does. Raises HelenusError for a table that has none at all although it had some:
        one that was dropped, or lost with a disk, and made anew.
        """
        rows = self._store.read()
        if not rows and self._saved:
            advice = "write the rows again, or with cdc_enabled=false in cdc disable publishing"
            raise HelenusError(Kind.CASSANDRA_READ, "configs is empty, and was not", "configs", advice)
        return {service: config for service, config in rows.items() if service in SERVICES}

    def write(self, service: str, config: Mapping[str, str]) -> None:
        """Check and replace a row. Raises ConfigError for a wrong one, and HelenusError for Cassandra's."""
        check_service(self._own, self.read(), service, config)
        self._store.write(service, config)
        self._wake.set()

    def delete(self, service: str) -> bool:
        """Delete a row. Return False if there is none. Raises HelenusError."""
        rows = self._store.read()
        if service not in rows:
            return False
        if _MARKER not in rows:
            self._store.write(_MARKER, _MARKER_CONFIG)
        is_deleted = self._store.delete(service)
        self._wake.set()
        return is_deleted

    def poll(self) -> None:
        """Read the table once, and take over what is right."""
        try:
            rows = self._read_known()
        except HelenusError as error:
            if str(error) != self._read_error:
                then = "the last configuration that was right is used"
                _log.warning("configs.unread", error=str(error), then=then)
            self._read_error = str(error)
            return
        self._read_error = ""
        # A replica that has missed much may once answer without a row: publishing is not disabled for that.
        known_rows = self._saved if self._seen is None else self._seen
        is_missing = bool((known_rows or {}).keys() - rows.keys())
        if is_missing and not self._was_missing:
            self._was_missing = True
            return
        self._was_missing = False
        is_due = bool(self._row_error) and time.monotonic() - self._checked_at > _RECHECK_S
        if rows != self._seen or is_due:
            self._checked_at, self._seen = time.monotonic(), rows
            if self._take_over(rows):
                self._accepted = rows
        if rows == self._accepted and rows != self._saved:
            self._save(rows)

    def _load_saved(self) -> EffectiveConfig:
        if self._saved is None:
            return EffectiveConfig(None, _UNREAD, is_known=False)
        try:
            return effective_config(self._own, self._saved)
        except ConfigError as error:  # the agent's own file, or one that is referred to, is another one now
            self._row_error = describe(error)
            reason = "publishing is disabled: the configuration that was saved is wrong now"
            return EffectiveConfig(None, reason, is_known=False)

    def _take_over(self, rows: Rows) -> bool:
        """Have the agent go by these rows. Return False if they are wrong, and it goes by the previous ones."""
        try:
            config = effective_config(self._own, rows)
        except ConfigError as error:
            problems = describe(error)
            if problems != self._row_error:
                _log.error("configs.refused", error=problems, then="the last configuration that was right is used")
            self._row_error = problems
            metrics.CONFIG_REFUSED.set(1)
            return False
        self._row_error = ""
        metrics.CONFIG_REFUSED.set(0)
        with self._lock:
            is_changed = config != self._config
            self._config = config
        if is_changed:
            _log.info("configs.changed", then="publish" if config.settings else config.reason)
            self.changed.set()
        return True

    def _save(self, rows: Rows) -> None:
        try:
            _saved_configs.save(self._state_dir, rows)
            self._saved, self._save_error = rows, ""
        except HelenusError as error:
            if str(error) != self._save_error:
                _log.error("configs.unsaved", error=str(error), then="a restart goes by the table alone")
            self._save_error = str(error)

    def _follow(self) -> None:
        while not self._is_closing:
            self._wake.clear()
            try:
                self.poll()
            except Exception as error:  # it has to go on
                _log.error("configs.failed", error=f"{type(error).__name__}: {error}")
            self.is_polled = True
            self._wake.wait(self._interval_s)
