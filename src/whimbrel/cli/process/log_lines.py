"""Log lines of services: structured, on standard error, and without characters that control a terminal."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import EventDict

__all__ = ["LOG_LEVELS", "set_log_level", "set_up_logging"]

LOG_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def _escape(text: str, keep: str = "") -> str:
    """Return *text* with unprintable characters escaped: a client must not forge log lines or set colours."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode() for each in text
    )


def _printable(value: object) -> object:
    """Return *value* with all its texts escaped."""
    match value:
        case str():
            return _escape(value)
        case list() | tuple():
            return [_printable(each) for each in value]
        case dict():
            return {_printable(key): _printable(each) for key, each in value.items()}
    return value


def _escape_values(_logger: object, _name: str, event: EventDict) -> EventDict:
    """Escape the values of a log line: client identifiers, addresses and reasons contain text from clients."""
    return {name: _printable(value) for name, value in event.items()}


class _EscapingFormatter(logging.Formatter):
    """Escapes lines of libraries, such as asyncio's tracebacks, too; their own line ends stay."""

    def format(self, record: logging.LogRecord) -> str:
        return _escape(super().format(record), keep="\n\t")


def set_up_logging(form: str, level: str) -> None:
    """Write log lines in the format *form*, json or text, from *level* on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_EscapingFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    renderer = structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[
            _escape_values,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    set_log_level(level)


def set_log_level(level: str) -> None:
    """Set the lowest level of log lines that are written."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(LOG_LEVELS[level]))
