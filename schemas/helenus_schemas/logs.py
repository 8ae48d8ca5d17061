"""Structured logs on standard error: one event name and fields, as text or as JSON lines."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to what standard error is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


_handler = _Handler()


def configure(level: str = "info", format: str = "text") -> None:
    """Set up logging for a command; `level` debug, info, warning or error, `format` text or json."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    )
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    # The libraries speak through logging, in the same form: only their warnings are of use to an operator.
    last = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer]
    foreign = [*processors[:-1], structlog.stdlib.add_logger_name, processors[-1]]
    _handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=last, foreign_pre_chain=foreign))
    logging.basicConfig(level=logging.WARNING, handlers=[_handler])
    logging.getLogger("cassandra").setLevel(logging.ERROR)
