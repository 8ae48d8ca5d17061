"""Whether a registry is away: one notices for all, and a thread asks when it is back, so that no batch waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from helenus_connector.control.backoff import pause
from helenus_schemas.errors import HelenusError, Kind

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
"""The first is short: a registry that restarts is back within seconds."""


class RegistryOutage:
    """The outages of one registry, for one process. `probe` raises HelenusError REGISTRY_UNREACHABLE while it is away.

    `first_pause_s` is how long to wait until it is asked; each next pause is longer, also where it answers and takes no
    schema.
    """

    def __init__(self, probe: Callable[[], None], first_pause_s: float = _FIRST_PAUSE_S) -> None:
        self._probe = probe
        self._first_pause_s = first_pause_s
        self._lock = threading.Lock()
        self._failures = 0
        self._is_away = False

    @property
    def is_away(self) -> bool:
        """Return whether the registry did not answer, and was not seen to answer since."""
        return self._is_away

    def begin(self) -> None:
        """Note that the registry did not answer."""
        with self._lock:
            self._failures += 1
            if not self._is_away:
                self._is_away = True
                threading.Thread(target=self._await_end, name="registry outage", daemon=True).start()

    def end(self) -> None:
        """Note that the registry took a schema."""
        with self._lock:
            self._failures = 0

    def _await_end(self) -> None:
        waiting = threading.Event()
        while True:
            waiting.wait(pause(self._failures, self._first_pause_s, _LONGEST_PAUSE_S))
            try:
                self._probe()
            except HelenusError as error:
                if error.kind is Kind.REGISTRY_UNREACHABLE:
                    with self._lock:
                        self._failures += 1
                    continue
            except Exception:  # whatever it is, the next registration meets it, and says so
                pass
            with self._lock:
                self._is_away = False
            return
