"""Control socket: lets ``whimbrel status`` and ``whimbrel reload`` reach a broker on this machine.

It is a Unix socket in the data folder, which only the owner of the folder and root can open. A request is one line with
its name; the answer is one line with a JSON object: ``{"ok": true, …}``.
Rule: requests are limited to a few seconds and 256 bytes, and few are answered at a time.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

import structlog

from whimbrel.broker.shell.operate.asking import CONTROL
from whimbrel.errors import WhimbrelError
from whimbrel.multicast.socket_paths import short_path

__all__ = ["ControlSocket"]

_log = structlog.get_logger("whimbrel")
_MAX_AT_ONCE = 8
_MAX_REQUEST_BYTES = 256
_TIMEOUT_S = 10.0

Act = Callable[[], Awaitable[Mapping[str, object]]]
"""Function that performs a request, and returns the members of the answer."""


class ControlSocket:
    """Server on the control socket in *folder*; *acts* has the function for each request, by name."""

    def __init__(self, folder: Path, acts: Mapping[str, Act]) -> None:
        self._path, self.acts = folder / CONTROL, acts
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self) -> None:
        """Start to listen; if that fails, log a warning: the broker runs without a control socket."""
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._path.unlink(missing_ok=True)  # left by a killed broker; we hold the log's lock, so it is gone
            with short_path(self._path) as path:
                opened.bind(path)
            self._path.chmod(0o600)
            self._server = await asyncio.start_unix_server(self._answer, sock=opened, limit=_MAX_REQUEST_BYTES)
        except OSError as error:
            opened.close()
            reason = error.strerror or str(error)
            _log.warning("no control socket: `whimbrel status` and `reload` cannot reach this broker", reason=reason)

    def close(self) -> None:
        """Stop listening, and remove the socket file."""
        if self._server is not None:
            self._server.close()
            self._server = None
            with suppress(OSError):
                self._path.unlink(missing_ok=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                line = b"" if self._open > _MAX_AT_ONCE else await reader.readline()
            answer = await self._answer_to(line.decode(errors="replace").strip())
            async with asyncio.timeout(_TIMEOUT_S):
                writer.write(json.dumps(answer, ensure_ascii=False).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError, TimeoutError):  # ValueError: a line that is too long
            pass
        finally:
            self._open -= 1
            writer.close()

    async def _answer_to(self, name: str) -> Mapping[str, object]:
        act = self.acts.get(name)
        if act is None:
            return {"ok": False, "reason": f"a request {name[:40]!r}; there are {', '.join(self.acts)}"}
        try:
            return {"ok": True, **await act()}
        except (WhimbrelError, OSError) as error:
            return {"ok": False, "reason": str(error)}
