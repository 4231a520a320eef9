"""Stalled publications: publications of MQTT 3.1.1 clients that wait until memory or disk has room.

MQTT 3.1.1 cannot refuse a publication: an acknowledgement would be wrong, and a client that is disconnected reconnects
at once and publishes the same again. So while memory or disk is full, its publications wait unacknowledged, in order.
All its other packets are handled, since its own acknowledgements free room.
Rule: the waiting bytes are bounded. Beyond the bound the connection is closed, and the next CONNECT of that client is
answered with return code 3 (server unavailable) until there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from whimbrel.broker.publish.admission import Admission
from whimbrel.broker.wire.clients import Link, LiveClient
from whimbrel.broker.wire.sender import Sender
from whimbrel.mqtt.packets import Publish

__all__ = ["MAX_STALLED_BYTES", "Stalled"]

MAX_STALLED_BYTES = 1 << 16
"""Most bytes of publications that may wait for one connection."""
_PACKET_BYTES = 200
"""Counted size of a publication in bytes, besides its topic and payload."""
_MAX_SHUT_OUT = 10_000
"""Most clients that are remembered so that their next CONNECT is refused; with more, the oldest is forgotten."""

_Receive = Callable[[Link, LiveClient, Sequence[Publish], int], None]


class Stalled:
    """The connections whose publications wait for room; *receive* handles these publications again."""

    def __init__(self, admission: Admission, sender: Sender, receive: _Receive) -> None:
        self._admission, self._sender, self._receive = admission, sender, receive
        self._links: dict[Link, None] = {}
        self._shut_out: dict[str, None] = {}

    def holds(self, link: Link, packets: Sequence[Publish]) -> bool:
        """Queue publications if earlier ones of the connection wait, else return False; close it if it has too many."""
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
        """Handle waiting publications if there is room now; return the connections whose publications were tried."""
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
        """Drop the waiting publications of a closed connection: its client will publish them again."""
        if link.stalled is not None:
            self._links.pop(link, None)
            link.stalled = None

    def refusal(self, *client_ids: str) -> str | None:
        """Return why CONNECT of a 3.1.1 client is refused: its publications did not fit, and there is still no room."""
        if self._shut_out.keys().isdisjoint(client_ids):
            return None
        full = self._admission.lasting_refusal()
        if full is not None:
            return full[1]
        for client_id in client_ids:
            self._shut_out.pop(client_id, None)
        return None
