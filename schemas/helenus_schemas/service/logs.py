"""Structured logs on standard error: one event name and fields, as text or as JSON lines.

Loggers are named after their modules, and their levels may change while the command runs. A level holds for a module,
or for a package and all below it; `root` is the default of all of ours. Libraries log through `logging`: of theirs only
warnings are shown, unless a library's logger gets a level.
"""

from __future__ import annotations

import functools
import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import structlog

from helenus_schemas.service._log_rate import LibraryFilter, LogRate

ROOT = "root"
NAMES = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARN": logging.WARNING, "ERROR": logging.ERROR}
"""Levels as Kafka Connect calls them."""


@dataclass(frozen=True)
class Level:
    """A logger's level, one of `NAMES`, and when it was set while running, in milliseconds since 1970."""

    name: str
    modified: int | None = None


@dataclass(frozen=True)
class Setup:
    """How a process logs: the format, None before `configure`, and the levels by logger."""

    format: str | None
    levels: Mapping[str, Level]


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # of TextIO, which Python 3.10 does not take
    """Writes to the current standard error, which tests replace."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


class _Logger(structlog.PrintLogger):
    """Knows the module that it was made for."""

    def __init__(self, name: str = ROOT) -> None:
        super().__init__(sys.stderr)
        self.name = name


_rate = LogRate()
_handler = _Handler()
_handler.addFilter(LibraryFilter(_rate))
_format: str | None = None
_levels: dict[str, Level] = {ROOT: Level("INFO")}
_filters = {name: structlog.make_filtering_bound_logger(number) for name, number in NAMES.items()}
# Bound logger classes by module: a line below its level costs one look-up here.
_loggers_by_name: dict[str, Any] = {}


def configure(level: str = "info", format: str = "text") -> None:
    """Set up logging for a command; `level` debug, info, warning or error, `format` text or json."""
    global _format
    _format = format
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    )
    processors: list[structlog.typing.Processor] = [
        _limit_rate,
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    _replace_levels({ROOT: Level(parse(level) or "INFO")})
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=cast("type[structlog.typing.BindableLogger]", _filtered_logger),
        logger_factory=functools.cache(_Logger),
    )
    # Libraries log through logging, in the same form: only their warnings are of use to an operator.
    last = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer]
    foreign = [*processors[1:-1], structlog.stdlib.add_logger_name, processors[-1]]
    _handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=last, foreign_pre_chain=foreign))
    logging.basicConfig(level=logging.WARNING, handlers=[_handler])
    logging.getLogger("cassandra").setLevel(logging.ERROR)


def _limit_rate(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Drop a line of an event that repeats itself too fast."""
    dropped = _rate.admit(str(event.get("event")))
    if dropped is None:
        raise structlog.DropEvent
    return {**event, "left_out": dropped} if dropped else event


def setup() -> Setup:
    """Return how this process logs, for another to `follow`."""
    return Setup(_format, _levels)


def follow(parent: Setup) -> None:
    """Log as the process that runs this one: take over its `setup`. Costs little if nothing has changed."""
    if parent.format is None or parent == setup():
        return
    if parent.format != _format:
        configure(format=parent.format)
    _replace_levels(dict(parent.levels))
    for name, level in parent.levels.items():
        _set_library_level(name, level.name)


def _filtered_logger(logger: Any, processors: Any, context: Any) -> Any:
    """Return the logger of a module, with methods that do nothing below its level."""
    name, loggers = getattr(logger, "name", ROOT), _loggers_by_name
    if name not in loggers:
        loggers[name] = _filters[_effective(name).name]
    return loggers[name](logger, processors, context)


def _effective(name: str) -> Level:
    """Return the level that holds for a logger: its own, or that of the nearest package above it."""
    while name not in _levels:
        name = name.rpartition(".")[0] or ROOT
    return _levels[name]


def parse(level: str) -> str | None:
    """Return the name of a level of log4j or Python: DEBUG for `trace`, WARN for `warning`; None for an unknown one."""
    name = level.upper()
    same = {"TRACE": "DEBUG", "WARNING": "WARN", "FATAL": "ERROR", "CRITICAL": "ERROR"}
    return name if name in NAMES else same.get(name)


def levels() -> dict[str, Level]:
    """Return the levels of all our loggers, and of others that were given one, by name."""
    modules = list(sys.modules.items())
    names = {name for name, module in modules if name.startswith("helenus_") and hasattr(module, "_log")}
    return {name: _effective(name) for name in sorted(names | _levels.keys())}


def change(name: str, level: str) -> list[str]:
    """Give a logger and all below it a level of `NAMES`. Return the names of those whose level changed."""
    before = levels()
    above = "helenus_" if name == ROOT else f"{name}."
    changed = {logger: logger_level for logger, logger_level in _levels.items() if not logger.startswith(above)}
    if changed != _levels or name not in before or before[name].name != level:
        changed[name] = Level(level, int(time.time() * 1000))
        _replace_levels(changed)
    _set_library_level(name, level)
    return [
        logger
        for logger, logger_level in levels().items()
        if logger not in before or before[logger].name != logger_level.name
    ]


def _set_library_level(name: str, level: str) -> None:
    """Set the level of a library's logger: libraries log through `logging`."""
    if name != ROOT and not name.startswith("helenus_"):
        logging.getLogger(name).setLevel(NAMES[level])


def _replace_levels(levels: dict[str, Level]) -> None:
    """Replace both at once: other threads log meanwhile, and may still add to the old `_loggers_by_name`."""
    global _levels, _loggers_by_name
    _levels, _loggers_by_name = levels, {}
