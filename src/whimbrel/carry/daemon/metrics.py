"""Metrics over HTTP: ``/metrics`` as Prometheus reads them, and ``/healthz``.

Rule: the time and size of a request are bounded, and so is the number of open connections.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping

from whimbrel.errors import InvalidValueError

__all__ = ["MetricsServer", "prometheus_text"]

_MAX_AT_ONCE = 8
_MAX_BYTES = 8_192
_TIMEOUT_S = 5.0
_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed"}


def prometheus_text(figures: Mapping[str, float]) -> str:
    """Return *figures* in Prometheus' text format; names that end in ``_total`` are counters."""
    lines: list[str] = []
    for name, value in sorted(figures.items()):
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# TYPE whimbrel_campus_{name} {kind}", f"whimbrel_campus_{name} {value:g}"]
    return "\n".join(lines) + "\n"


class MetricsServer:
    """Answers with what *figures* returns."""

    def __init__(self, figures: Callable[[], Mapping[str, float]]) -> None:
        self._figures = figures
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port."""
        try:
            self._server = await asyncio.start_server(self._answer, host, port, limit=_MAX_BYTES)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise InvalidValueError("port of /metrics", port, f"one that is free ({reason})") from None
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Answer no more requests."""
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                head = b"" if self._open > _MAX_AT_ONCE else await reader.readuntil(b"\r\n\r\n")
                status, body = self._answer_to(head.split(b" ", 2))
                kind = "text/plain; version=0.0.4; charset=utf-8"
                said = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
                writer.write(f"{said}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass
        finally:
            self._open -= 1
            writer.close()

    def _answer_to(self, words: list[bytes]) -> tuple[int, bytes]:
        if words[0] != b"GET":
            return 405, b"only GET\n"
        path = words[1] if len(words) > 1 else b""
        if path == b"/metrics":
            return 200, prometheus_text(self._figures()).encode()
        return (200, b"ok\n") if path == b"/healthz" else (404, b"there are /metrics and /healthz\n")
