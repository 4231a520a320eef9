"""The service of a way-server: a node with a connection to the broker.

Rule: the census is published when it has changed, and every ten minutes. Control data and the time come from the
administrative server. Without the broker the node continues with the data that it has, and ``status`` shows their age.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import structlog

from whimbrel.carry.backbone.bridge import Bridge, id_of, read_sample, topic_of
from whimbrel.carry.backbone.census import Census, census_body
from whimbrel.carry.backbone.link import BrokerLink, Subscribed
from whimbrel.carry.backbone.messages import CENSUS, CONTROL, DOWN, SAMPLE_PROPERTY, TIME, UP, read_control, read_time
from whimbrel.carry.backbone.settings import WayServerSettings
from whimbrel.carry.backbone.way_server import WayServer
from whimbrel.carry.control.clock import CampusClock
from whimbrel.carry.control.topics import TopicNames
from whimbrel.carry.daemon.journal import sample_name, subject_of
from whimbrel.carry.daemon.service import NodeService, rules_of
from whimbrel.carry.daemon.settings import key_of, signer_of
from whimbrel.carry.hello import NONCE_BYTES, Sample
from whimbrel.client import Message
from whimbrel.model.clock import US_PER_S
from whimbrel.multicast.sockets import MulticastSocket

__all__ = ["WayServerService"]

_log = structlog.get_logger("whimbrel")
_REFRESH_US = 600 * US_PER_S


class WayServerService:
    """A way-server on one interface, with a broker behind it."""

    def __init__(
        self,
        settings: WayServerSettings,
        *,
        link: Callable[[], MulticastSocket] | None = None,
        own: Callable[[], int] | None = None,
    ) -> None:
        self.settings = settings
        self.node = NodeService(settings, make=self._make, link=link, own=own)
        self.node.extra_status, self.node.extra_metrics = self.status, self.metrics
        self._bridge = Bridge()
        self._up: dict[str, Sample] = {}
        """The newest sample of each bridged topic that the broker does not have yet."""
        self._published: Census | None = None
        self._published_on = 0
        wanted = [Subscribed(topic_filter=CONTROL, take=self._take_control)]
        if settings.clock == "admin":
            wanted.append(Subscribed(topic_filter=TIME, take=self._take_time))
        for name in settings.bridge:
            wanted.append(Subscribed(topic_filter=subject_of(name), take=self._take_sample))
            wanted.append(Subscribed(topic_filter=f"{DOWN}/{name}", take=self._take_sample))
        self.link = BrokerLink(lambda reconnect: settings.client(f"campus-{settings.name}", reconnect), wanted)

    def _make(self, address: int, _settings: object, topics: TopicNames) -> WayServer:
        settings = self.settings
        secret = Path(settings.campus_key)
        signer = signer_of(secret)
        return WayServer(
            address,
            rules_of(settings),
            topics=topics,
            clock=CampusClock(),
            nonce=lambda: os.urandom(NONCE_BYTES),
            signer=signer,
            secret=signer.sign_bytes(b"whimbrel campus: users 1")[:32],
            name=settings.name,
            statements=settings.statements(),
            keys=[key_of("key", each) for each in settings.key],
        )

    @property
    def way_server(self) -> WayServer:
        """The participant of this node."""
        assert isinstance(self.node.participant, WayServer)
        return self.node.participant

    async def check(self) -> None:
        """Raise a ``WhimbrelError`` if a key is unusable or the broker will never accept this gate; it may be away."""
        signer_of(Path(self.settings.campus_key))
        self.settings.statements()
        await self.link.check()

    def open(self) -> None:
        """Restore the node and join the link."""
        self.node.open()
        daemon = self.node.daemon
        if self.settings.clock == "own":
            self.way_server.clock.set(daemon.own, own=daemon.own)
        daemon.listeners.append(self._deliver)
        for name in self.settings.bridge:
            daemon.perform(self.way_server.subscribe(name))

    def close(self) -> None:
        """Leave the link and unlock the data folder."""
        self.node.close()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until *stop* is set."""
        tasks = [asyncio.ensure_future(self.link.run()), asyncio.ensure_future(self._publish_regularly())]
        try:
            await self.node.run(stop)
        finally:
            for each in tasks:
                each.cancel()
            for each in tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await each

    # -- from the broker ---------------------------------------------------------------------------------------------

    def _take_control(self, message: Message) -> None:
        daemon = self.node.daemon
        daemon.perform(self.way_server.publish_control(read_control(message.payload), own=daemon.own))

    def _take_time(self, message: Message) -> None:
        self.node.daemon.set_clock(read_time(message.payload))

    def _take_sample(self, message: Message) -> None:
        """Store a sample from the broker; one without an id comes again with an id of the administrative server."""
        sample_id, name = id_of(message), topic_of(message.topic)
        if sample_id is None or not self._bridge.is_new(name, sample_id):
            return
        daemon, topic = self.node.daemon, self.way_server.topics.id_of(name)
        sample = read_sample(message, sample_id, topic, now=daemon.now)
        # A sample that another gate has sent up has its copies among the nodes; this one waits for subscribers.
        copies = self.way_server.copies_of(topic) if message.topic.startswith(DOWN) else 1
        daemon.perform(self.way_server.adopt(sample, copies=copies, own=daemon.own))

    # -- to the broker -----------------------------------------------------------------------------------------------

    def _deliver(self, sample: Sample) -> None:
        name = self.way_server.topics.name_of(sample.topic)
        if name in self.settings.bridge and self._bridge.is_new(name, sample.id):
            self._up[name] = sample

    async def _publish_regularly(self) -> None:
        while True:
            await self.publish()
            await asyncio.sleep(min(self.settings.census_s, 1.0) if self._up else self.settings.census_s)

    async def publish(self) -> None:
        """Publish the census if it has changed, and the samples that the broker does not have yet."""
        daemon = self.node.daemon
        daemon.perform(self.way_server.renew_control(own=daemon.own))
        census = self.way_server.census(own=daemon.own)
        if self._is_news(census):
            connection = self.link.connections
            if await self.link.publish(f"{CENSUS}/{self.settings.name}", census_body(census)):
                self._published, self._published_on = census, connection
        for name, sample in list(self._up.items()):
            user = [(SAMPLE_PROPERTY, sample_name(sample.id))]
            if await self.link.publish(f"{UP}/{name}", sample.body, user=user) and self._up.get(name) == sample:
                del self._up[name]

    def _is_news(self, census: Census) -> bool:
        known = self._published
        if known is None or self._published_on != self.link.connections:
            return True
        if census.at - known.at >= _REFRESH_US or census.users.keys() != known.users.keys():
            return True
        said = ((each, known.users[user]) for user, each in census.users.items())
        return any((each.topics, each.places) != (before.topics, before.places) for each, before in said)

    # -- figures -----------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, object]:
        """Return the members that a way-server adds to the status of a node."""
        census, now = self.way_server.census(own=self.node.daemon.own), self.node.daemon.now
        age_s = None if self._published is None else round((now - self._published.at) / US_PER_S, 1)
        return {
            "role": "way-server",
            "name": self.settings.name,
            "broker": "connected" if self.link.is_connected else "away",
            "broker_trouble": self.link.trouble,
            "users": len(census.users),
            "census_age_s": age_s,
            "bridged": list(self.settings.bridge),
            "waiting_for_broker": sorted(self._up),
        }

    def metrics(self) -> dict[str, float]:
        """Return the metrics that a way-server adds to those of a node."""
        census, now = self.way_server.census(own=self.node.daemon.own), self.node.daemon.now
        found: dict[str, float] = {
            "users": len(census.users),
            "broker_connected": float(self.link.is_connected),
            "samples_waiting_for_broker": len(self._up),
            "broker_messages_refused_total": self.link.refused,
        }
        if self._published is not None:
            found["census_age_seconds"] = (now - self._published.at) / US_PER_S
        return found
