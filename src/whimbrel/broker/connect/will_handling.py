"""Wills: how clients set and withdraw them, and when the broker publishes them (MQTT 5, 3.1.2.5, 3.1.3.2 and 3.14.4).

Rule: a will is written before the CONNECT that carries it, and both are durable before CONNACK.
Rule: a will is delivered when its publication is durable, at QoS 0 too. The publication names its will, so a broker
that is killed in between neither forgets the will nor publishes it twice.
Rule: rights are checked twice: when the client sets the will, and when it is published.
"""

from __future__ import annotations

from collections.abc import Container
from functools import partial

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.publish.publication_keys import unlocked_will
from whimbrel.broker.publish.publishing import PublishHandler
from whimbrel.broker.settings.config import Config
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.waiting.commit_queue import CommitQueue
from whimbrel.broker.wire.clients import Link
from whimbrel.broker.wire.placing import read_placing
from whimbrel.errors import InvalidValueError
from whimbrel.model.clock import US_PER_S
from whimbrel.model.facts import WillChange, WillChanged
from whimbrel.model.keys import Secured
from whimbrel.model.will import LastWill
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import Will
from whimbrel.mqtt.properties import Property, passed_on
from whimbrel.node.wills import LeftWill

__all__ = ["WillHandling"]


class WillHandling:
    """Stores, withdraws and publishes the wills of clients."""

    def __init__(
        self,
        config: Config,
        commits: CommitQueue,
        state: BrokerState,
        authorizer: Authorizer,
        publishing: PublishHandler,
    ) -> None:
        self._config, self._commits, self._state = config, commits, state
        self._authorizer, self._publishing = authorizer, publishing

    def begin(self, now: int) -> None:
        """Start the delay of the wills of clients that were connected to the previous broker process."""
        self._state.wills.begin(now, self._config.mqtt.will_grace_s * US_PER_S)

    def refusal(self, link: Link, client_id: str, will: Will) -> tuple[ReasonCode, str] | None:
        """Return why CONNECT is refused because of its will, or None."""
        _, secured = unlocked_will(will, link.keyring, is_ours=link.is_ours)
        refusal = self._publishing.admission.will_refusal(link, client_id, will)
        if refusal is None and isinstance(secured, str):
            return ReasonCode.PAYLOAD_FORMAT_INVALID, f"the will's {secured}"
        if refusal is None:
            try:
                read_placing(will.properties.user, is_ours=link.is_ours)
            except InvalidValueError as error:
                return ReasonCode.PAYLOAD_FORMAT_INVALID, f"the place of the will: {error}"
        return refusal

    # -- CONNECT -----------------------------------------------------------------------------------------------------

    def come(self, link: Link, client_id: str, will: Will | None, now: int, *, is_resumed: bool) -> None:
        """Handle a CONNECT: store its will, and withdraw or publish the waiting will of the client's last connection.

        A waiting will is withdrawn, or replaced by the new one, if the same user returns in time: by resuming the
        session, or because the connection ended only since the broker stopped. Otherwise it is published.
        """
        waiting = self._state.will_of(client_id)
        if waiting is not None:
            is_in_time = waiting.owner == link.user and (is_resumed or waiting.is_excused)
            if not is_in_time:
                self.publish(waiting, now)
            elif will is None:
                self.withdraw(client_id, now)
        if will is not None:
            bare, secured = unlocked_will(will, link.keyring, is_ours=link.is_ours)
            assert not isinstance(secured, str), "CONNECT was refused for it"
            fact = WillChanged(
                node=self._commits.node,
                seq=self._commits.seq,
                changed_at=self._commits.now(now),
                device=client_id,
                change=WillChange.LEFT,
                will=_last_will(bare, secured),
            )
            self._commits.enter(fact, partial(self._state.apply, fact), is_owed=True)

    # -- disconnect --------------------------------------------------------------------------------------------------

    def withdraw(self, client_id: str, now: int) -> None:
        """Record that a client's will is withdrawn, if it has one."""
        if self._state.will_of(client_id) is None:
            return
        fact = WillChanged(
            node=self._commits.node,
            seq=self._commits.seq,
            changed_at=self._commits.now(now),
            device=client_id,
            change=WillChange.WITHDRAWN,
        )
        self._commits.enter(fact, partial(self._state.apply, fact), is_owed=False)

    def on_connection_lost(self, client_id: str, expiry_us: int, now: int, *, is_clean: bool) -> None:
        """Publish a lost client's will at once if it has no delay, or its session ends now.

        The session ends now on a clean start, or if *expiry_us* is 0.
        """
        left = self._state.will_of(client_id)
        if left is not None and (is_clean or not min(left.will.delay_us, expiry_us)):
            self.publish(left, now)

    def tick(self, now: int, coming: Container[str]) -> None:
        """Publish the wills that are due, except those of clients whose CONNECT is in progress (*coming*)."""
        publishing = self._state.volatile.publishing_wills
        if publishing:
            publishing &= {left.seq for left in self._state.wills.by_device.values()}  # the other wills are published
        for left in self._state.wills.due(now):
            if left.device not in coming and left.seq not in publishing:
                self.publish(left, now)

    def publish(self, left: LeftWill, now: int) -> None:
        """Publish a will; while the log cannot be written, it stays stored and is tried again by ``tick``."""
        if self._publishing.admission.is_refusing:
            return
        if not self._authorizer.may_publish_as(left.owner, left.device, left.will.subject):
            self._publishing.counters.refused += 1
            self.withdraw(left.device, now)
            return
        self._state.volatile.publishing_wills.add(left.seq)
        self._publishing.publish_will(left, now)


def _last_will(will: Will, secured: Secured) -> LastWill:
    """Convert a will of CONNECT, without its keys, to the form that the log stores."""
    properties = will.properties
    expiry_s = properties.integer(Property.MESSAGE_EXPIRY_INTERVAL)
    return LastWill(
        subject=will.topic,
        body=will.payload,
        qos=will.qos,
        retain=will.retain,
        delay_us=(properties.integer(Property.WILL_DELAY_INTERVAL) or 0) * US_PER_S,
        expiry_us=None if expiry_s is None else expiry_s * US_PER_S,
        keys=secured.keys,
        deliver_insecure=secured.deliver_insecure,
        properties=passed_on(properties),
    )
