"""The client's side of a WebSocket, for attacks and benchmarks: the library ``websockets`` makes the frames."""

from __future__ import annotations

from websockets.frames import Frame, Opcode

__all__ = ["client_frame", "upgrade_request"]


def upgrade_request(host: str = "127.0.0.1") -> bytes:
    """Return the request for a WebSocket of MQTT."""
    lines = (
        "GET /mqtt HTTP/1.1",
        f"Host: {host}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: mqtt",
    )
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n"


def client_frame(payload: bytes, *, is_first: bool = True, is_final: bool = True) -> bytes:
    """Return *payload* in a frame, masked, which begins a message or goes on with it, and may end it."""
    opcode = Opcode.BINARY if is_first else Opcode.CONT
    return Frame(opcode, payload, fin=is_final).serialize(mask=True)
