"""Requests of operators about clients: ``$whimbrel/clients/list``, ``show`` and ``disconnect``.

A request is an object of JSON; it is answered in the same way as requests about sessions.
Rule: each needs the right ``operate`` for its topic. Without that right the answer is always the same.
Rule: answers are bounded: a page has at most 1,000 clients and about 64 KiB, and names the start of the next page.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import chain

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.requests.answers import Answers, Asked
from whimbrel.broker.requests.session_requests import Request, id_of
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.waiting.commit_queue import CommitQueue
from whimbrel.broker.waiting.long_work import LongWork
from whimbrel.broker.wire.clients import Link, LiveClient
from whimbrel.broker.wire.events import shown_address
from whimbrel.broker.wire.notices import CLIENTS, subscription_tree
from whimbrel.broker.wire.sender import Sender
from whimbrel.errors import MalformedBodyError
from whimbrel.model.attributes import Limits
from whimbrel.model.clock import US_PER_S
from whimbrel.model.json_body import read_json
from whimbrel.model.notification import AT_LEAST_ONCE
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.packets import V5, Publish

__all__ = ["ClientRequests"]

_MAX_REQUEST_BYTES = 4_096
_LIMITS = Limits(max_bytes=_MAX_REQUEST_BYTES)
_PIECE = 5_000
"""Client identifiers that are compared in one turn of the event loop; each takes about 0.2 µs."""
_FEW, _MOST = 100, 1_000
_MAX_ANSWER_BYTES = 65_536
_NOT_ALLOWED = "this needs a user with the right operate for $whimbrel/clients/#"
_MEMBERS: Mapping[str, Mapping[str, type]] = {
    "list": {"after": str, "most": int, "connected": bool},
    "show": {"client": str},
    "disconnect": {"client": str},
}
"""The JSON members that each request may have, with their types; a member ``client`` is required."""


class ClientRequests:
    """Answers operators' requests about clients."""

    def __init__(
        self, commits: CommitQueue, state: BrokerState, sender: Sender, authorizer: Authorizer, long_work: LongWork
    ) -> None:
        self._state, self._sender, self._authorizer, self._long_work = state, sender, authorizer, long_work
        self._answers = Answers(commits, sender)

    def handle(self, link: Link, client: LiveClient, packet: Publish, now: int) -> None:
        """Handle a request; at QoS 1 and 2 its PUBLISH already counts against the receive maximum."""
        del now
        verb = packet.topic.removeprefix(CLIENTS)
        if packet.qos > AT_LEAST_ONCE:
            client.receiving.add(packet.packet_id)
        asked = Asked(link, client, packet, Request(verb=verb, id=id_of(packet.payload)))
        try:
            if not self._authorizer.may_operate(link, client.id, packet.topic):
                raise ProtocolError(ReasonCode.NOT_AUTHORIZED, _NOT_ALLOWED)
            members = _read(verb, packet.payload)
            match verb:
                case "list":
                    self._long_work.begin(link, self._list(asked, members))
                case "show":
                    self._answers.answer(asked, self._details(self._find(members)))
                case _:
                    self._disconnect(asked, self._find(members))
        except ProtocolError as error:
            self._answers.refuse(asked, error.code, error.reason)

    def _find(self, members: Mapping[str, object]) -> LiveClient:
        found = self._state.clients.get(str(members["client"]))
        if found is None:
            raise ProtocolError(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "no client has this identifier")
        return found

    # -- list --------------------------------------------------------------------------------------------------------

    def _list(self, asked: Asked, members: Mapping[str, object]) -> Iterator[None]:
        """Answer with a page of clients, sorted by identifier; the work begins in the turn after the request."""
        yield
        after, most = str(members.get("after", "")), int(str(members.get("most", _FEW)))
        is_wanted = _is_connected if members.get("connected") else _is_any
        found = yield from self._next(after, most + 1, is_wanted)
        page: list[Mapping[str, object]] = []
        size_bytes = 0
        for client_id in found[:most]:
            client = self._state.clients.get(client_id)
            if client is None:  # its session ended meanwhile
                continue
            entry = self._entry(client)
            size_bytes += len(json.dumps(entry, ensure_ascii=False).encode(errors="replace"))
            if page and size_bytes > _MAX_ANSWER_BYTES:
                break
            page.append(entry)
        last = page[-1]["client"] if page else None
        has_more = bool(page) and found[-1] != last
        self._answers.answer(asked, {"clients": page, "next": last if has_more else None})

    def _next(self, after: str, most: int, is_wanted: Callable[[LiveClient], bool]) -> Generator[None, None, list[str]]:
        """Return the first *most* wanted client identifiers after *after*; yield after each step of the search."""
        clients, found = self._state.clients, list[str]()
        known = list(clients)
        for at in range(0, len(known), _PIECE):
            if at:
                yield
            piece = (
                each
                for each in known[at : at + _PIECE]
                if each > after and (client := clients.get(each)) is not None and is_wanted(client)
            )
            found = heapq.nsmallest(most, chain(found, piece))
        return found

    def _entry(self, client: LiveClient) -> dict[str, object]:
        link = client.link
        return {
            "client": client.id,
            "user": client.owner,
            "connected": link is not None,
            "address": None if link is None else shown_address(link.address),
            "subscriptions": len(self._state.hold.subscriptions(client.session)),
            "held": self._state.hold.pending_count(client.session),
        }

    # -- show --------------------------------------------------------------------------------------------------------

    def _details(self, client: LiveClient) -> dict[str, object]:
        """Return the details of one client, with as many of its subscriptions as fit."""
        link, subscribed, size_bytes = client.link, list[dict[str, object]](), 0
        for subscription in self._state.hold.subscriptions(client.session)[:_FEW]:
            tree = subscription_tree(subscription)
            size_bytes += len(json.dumps(tree, ensure_ascii=False).encode(errors="replace"))
            if subscribed and size_bytes > _MAX_ANSWER_BYTES:
                break
            subscribed.append(tree)
        connection = None
        if link is not None:
            connection = {
                "mqtt": "5" if link.machine.version == V5 else "3.1.1",
                "keep_alive_s": link.keep_alive_us // US_PER_S,
                "in_flight": len(client.flying) + len(client.releasing),
                "waiting": len(client.queue) + len(client.live),
                "waiting_bytes": client.queued_bytes,
                "sessions": sorted(link.rights)[:_FEW],
                "slow": link.is_lagging or link.is_choked,
            }
        return {
            **self._entry(client),
            "session_expiry_s": client.expiry_us // US_PER_S,
            "disconnected_at": None if link is not None else client.disconnected_at,
            "connection": connection,
            "filters": subscribed,
        }

    # -- disconnect --------------------------------------------------------------------------------------------------

    def _disconnect(self, asked: Asked, client: LiveClient) -> None:
        """Close the connection of a client, if it has one; its session and will are treated as when it is lost."""
        link = client.link
        self._answers.answer(asked, {"client": client.id, "disconnected": link is not None})
        if link is not None:
            self._sender.fail(link, ReasonCode.ADMINISTRATIVE_ACTION, "an operator disconnected this client")


def _is_connected(client: LiveClient) -> bool:
    return client.link is not None


def _is_any(_client: LiveClient) -> bool:
    return True


def _read(verb: str, body: bytes) -> Mapping[str, object]:
    """Parse a request, or raise ``ProtocolError`` with the code for the answer."""
    if verb not in _MEMBERS:
        raise ProtocolError(ReasonCode.TOPIC_NAME_INVALID, f"a request {verb[:40]!r}; there are {', '.join(_MEMBERS)}")
    allowed = _MEMBERS[verb]
    try:
        tree = {name: value for name, value in read_json(body or b"{}", limits=_LIMITS).items() if name != "id"}
    except MalformedBodyError:
        raise _refusal(f"a body that is no object of JSON of at most {_MAX_REQUEST_BYTES} bytes") from None
    for name, value in tree.items():
        if name not in allowed:
            raise _refusal(f"a member {name[:40]!r}; {verb} has {', '.join((*allowed, 'id'))}")
        if type(value) is not allowed[name]:
            raise _refusal(f"{name} is {type(value).__name__}, and should be {allowed[name].__name__}")
    if "client" in allowed and "client" not in tree:
        raise _refusal(f"no member 'client', which {verb} needs")
    most = tree.get("most", _FEW)
    if not isinstance(most, int) or not 1 <= most <= _MOST:
        raise _refusal(f"most is {most}; allowed is 1 to {_MOST}")
    return tree


def _refusal(reason: str) -> ProtocolError:
    return ProtocolError(ReasonCode.PAYLOAD_FORMAT_INVALID, reason)
