"""Structured logs on standard error: one event name and fields, as text or as JSON lines."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(level: str = "info", format: str = "text") -> None:
    """Set up logging for a command; `level` debug, info, warning or error, `format` text or json."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    # The libraries speak through logging: only their warnings are of use to an operator.
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(asctime)s [%(levelname)s] %(name)s: %(message)s"
    )
    logging.getLogger("cassandra").setLevel(logging.ERROR)
