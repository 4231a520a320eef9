"""The Unix socket of a daemon: each request and each answer is one line of JSON (``carry.application``).

Rule: any process that may open the data folder may send requests. The length of a line and the number of connections
are bounded.
"""

from __future__ import annotations

import asyncio
import json
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from whimbrel.carry.application import DOOR, MAX_LINE_BYTES
from whimbrel.errors import InvalidValueError, WhimbrelError, description_of
from whimbrel.log.errors import LogWriteError
from whimbrel.multicast.socket_paths import short_path

__all__ = ["RequestSocket"]

_MAX_AT_ONCE = 32


class RequestSocket(ABC):
    """Answers requests on a Unix socket in *folder*; a subclass makes the answers."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / DOOR
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @abstractmethod
    async def act(self, request: Mapping[str, object]) -> Mapping[str, object]:
        """Perform *request* and return the members of its answer."""

    async def follow(
        self, request: Mapping[str, object], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Serve the rest of a connection after *request*; return False if further requests follow."""
        del request, reader, writer
        return False

    async def start(self) -> None:
        """Listen. This daemon has locked the folder, so an existing socket file was left by one that crashed."""
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._path.unlink(missing_ok=True)
            with short_path(self._path) as path:
                opened.bind(path)
            self._path.chmod(0o600)
            self._server = await asyncio.start_unix_server(self._serve, sock=opened, limit=MAX_LINE_BYTES)
        except OSError as error:
            opened.close()
            raise LogWriteError(self._path, error.strerror or str(error)) from error

    def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
            for each in list(self._open):
                each.close()
            with suppress(OSError):
                self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= _MAX_AT_ONCE:
            writer.close()
            return
        self._open.add(writer)
        try:
            while line := await reader.readline():
                request, answer = await self._answer_to(line)
                writer.write(json.dumps(answer, ensure_ascii=False).encode() + b"\n")
                await writer.drain()
                if request is not None and await self.follow(request, reader, writer):
                    return
        except (OSError, ValueError, asyncio.CancelledError):  # the line is too long, or the daemon stops
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer_to(self, line: bytes) -> tuple[Mapping[str, object] | None, Mapping[str, object]]:
        """Return the request, or None if it was refused, and the answer."""
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise InvalidValueError("request", description_of(request), "an object")
            return request, {"ok": True, **await self.act(request)}
        except (ValueError, RecursionError) as error:
            return None, {"ok": False, "reason": f"a request that is not JSON: {error}"}
        except WhimbrelError as error:
            return None, {"ok": False, "reason": str(error)}
