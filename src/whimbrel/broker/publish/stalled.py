"""Publications of 3.1.1 that wait for room.

MQTT 3.1.1 has no words for a publication that is refused: an acknowledgement would be a lie, and a client whose
connection is closed comes back at once and publishes the same again. So where memory or disk is full, its publications
wait unanswered, in order, while everything else it sends is handled: its own acknowledgements make room.
Rule: what waits is bounded. Beyond that the connection is closed, and the next CONNECT of that client is answered with
return code 3 (server unavailable) until there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from whimbrel.broker.publish.admission import Admission
from whimbrel.broker.wire.clients import Link, LiveClient
from whimbrel.broker.wire.sender import Sender
from whimbrel.mqtt.packets import Publish

__all__ = ["MAX_STALLED_BYTES", "Stalled"]

MAX_STALLED_BYTES = 1 << 16
"""How many bytes of publications may wait for one connection."""
_PACKET_BYTES = 200
"""What each counts beside its topic and its payload."""
_MAX_SHUT_OUT = 10_000
"""Clients whose next CONNECT is judged; beyond them the oldest is let in, and is closed again if there is no room."""

_Receive = Callable[[Link, LiveClient, Sequence[Publish], int], None]


class Stalled:
    """The connections whose publications wait; *receive* takes them in again."""

    def __init__(self, admission: Admission, sender: Sender, receive: _Receive) -> None:
        self._admission, self._sender, self._receive = admission, sender, receive
        self._links: dict[Link, None] = {}
        self._shut_out: dict[str, None] = {}

    def holds(self, link: Link, packets: Sequence[Publish]) -> bool:
        """Let publications wait if those before them do, and return whether they do; close a link with too many."""
        stalled = link.stalled
        if stalled is None:
            return False
        self._links[link] = None
        stalled.packets += packets
        stalled.size_bytes += sum(_PACKET_BYTES + len(each.topic) + len(each.payload) for each in packets)
        if stalled.size_bytes > MAX_STALLED_BYTES and link.closing is None:
            self._shut_out[link.client.id if link.client is not None else ""] = None
            if len(self._shut_out) > _MAX_SHUT_OUT:
                del self._shut_out[next(iter(self._shut_out))]
            self._sender.counters.refused += len(stalled.packets)
            most = f"more than {MAX_STALLED_BYTES} bytes of publications wait for room"
            self._sender.close(link, f"{most}: {stalled.reason}")
        return True

    def retry(self, now: int) -> list[Link]:
        """Take in what waits, if there is room by now; return the connections for which that was tried."""
        admission = self._admission
        if not self._links or not admission.takes_publications or admission.room_refusal() is not None:
            return []
        links, self._links = list(self._links), {}
        for link in links:
            stalled, link.stalled = link.stalled, None
            if stalled is not None and link.client is not None and link.closing is None:
                self._receive(link, link.client, stalled.packets, now)
        return links

    def forget(self, link: Link) -> None:
        """Let go of what waits for a connection that is closed: its client publishes it again."""
        if link.stalled is not None:
            self._links.pop(link, None)
            link.stalled = None

    def refusal(self, *client_ids: str) -> str | None:
        """Return why a CONNECT of 3.1.1 is refused: what its client published did not fit, and there is no room yet."""
        if self._shut_out.keys().isdisjoint(client_ids):
            return None
        full = self._admission.lasting_refusal()
        if full is not None:
            return full[1]
        for client_id in client_ids:
            self._shut_out.pop(client_id, None)
        return None
