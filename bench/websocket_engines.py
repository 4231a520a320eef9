"""Libraries of WebSocket frames in the place of ours, so that a broker can be measured with each.

``python bench/websocket_engines.py wsproto serve …`` is ``whimbrel serve …`` with that library.
Rule: for measuring only. They keep fewer of our bounds: ``websockets`` keeps whole frames and answers every ping,
``wsproto`` has no limit on a frame's length and refuses lengths that are not the shortest.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable

from websockets.frames import Frame, Opcode
from websockets.protocol import SERVER, Protocol, State
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping

from whimbrel.broker.shell.net import connections
from whimbrel.broker.shell.net.websocket import Framing
from whimbrel.cli import main

__all__ = ["ENGINES", "OURS", "WEBSOCKETS", "WSPROTO", "LibraryFraming", "WebsocketsFraming", "WsprotoFraming"]

OURS, WEBSOCKETS, WSPROTO = "whimbrel", "websockets", "wsproto"


class LibraryFraming(ABC):
    """What the server asks of ``Framing``, of any library."""

    frames = 0

    def __init__(self, *, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.closed = False

    @abstractmethod
    def receive(self, data: bytes) -> bytes:
        """Return what the frames of *data* carry."""

    @abstractmethod
    def to_send(self) -> bytes:
        """Return the answers that are due."""

    @abstractmethod
    def wrap(self, data: bytes) -> bytes:
        """Return *data* as one binary frame."""

    @abstractmethod
    def close(self) -> bytes:
        """Return the close frame."""


class WsprotoFraming(LibraryFraming):
    """The frames of ``wsproto``."""

    def __init__(self, *, max_frame_bytes: int) -> None:
        super().__init__(max_frame_bytes=max_frame_bytes)
        self._connection = Connection(ConnectionType.SERVER)
        self._answers = b""

    def receive(self, data: bytes) -> bytes:
        """Return what the frames of *data* carry."""
        connection, chunks = self._connection, []
        connection.receive_data(data)
        for event in connection.events():
            if isinstance(event, BytesMessage):
                chunks.append(event.data)
            elif isinstance(event, Ping):
                self._answers = connection.send(event.response())
            elif isinstance(event, CloseConnection):
                self.closed = True
                if connection.state in {ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING}:
                    self._answers += connection.send(event.response())
        return b"".join(chunks)

    def to_send(self) -> bytes:
        """Return the answers that are due."""
        answers, self._answers = self._answers, b""
        return answers

    def wrap(self, data: bytes) -> bytes:
        """Return *data* as one binary frame."""
        return b"" if self.closed else self._connection.send(BytesMessage(data=data))

    def close(self) -> bytes:
        """Return the close frame."""
        return b"" if self.closed else self._connection.send(CloseConnection(code=1000))


class WebsocketsFraming(LibraryFraming):
    """The sans-I/O layer of ``websockets``."""

    def __init__(self, *, max_frame_bytes: int) -> None:
        super().__init__(max_frame_bytes=max_frame_bytes)
        self._protocol = Protocol(SERVER, max_size=max_frame_bytes)

    def receive(self, data: bytes) -> bytes:
        """Return what the frames of *data* carry."""
        protocol = self._protocol
        protocol.receive_data(data)
        frames = (event for event in protocol.events_received() if isinstance(event, Frame))
        chunks = [frame.data for frame in frames if frame.opcode in {Opcode.BINARY, Opcode.CONT}]
        self.closed = protocol.state is not State.OPEN
        return bytes(chunks[0]) if len(chunks) == 1 else b"".join(chunks)

    def to_send(self) -> bytes:
        """Return the answers that are due."""
        return b"".join(self._protocol.data_to_send())

    def wrap(self, data: bytes) -> bytes:
        """Return *data* as one binary frame."""
        if self.closed:
            return b""
        self._protocol.send_binary(data)
        return self.to_send()

    def close(self) -> bytes:
        """Return the close frame."""
        if self.closed:
            return b""
        self._protocol.send_close(1000)
        return self.to_send()


ENGINES: dict[str, Callable[..., Framing | LibraryFraming]] = {
    OURS: Framing,
    WEBSOCKETS: WebsocketsFraming,
    WSPROTO: WsprotoFraming,
}


if __name__ == "__main__":
    assert hasattr(connections, "Framing"), "else the engine that is measured is ours"
    setattr(connections, "Framing", ENGINES[sys.argv.pop(1)])  # noqa: B010  # for measuring only
    main()
