"""Position reports: handle many reports at once that contain nothing but a device's place.

This follows the steps of ``reports`` without those that cannot matter here. A QoS 0 report without properties and with
only a place gets no acknowledgement. It has no count of received messages either, so the count of sent messages
continues until the next report that has one.
Rule: state and log are the same with and without this path (tests/unit/test_broker_moves.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.publish.admission import Admission
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.waiting.commit_queue import CommitQueue
from whimbrel.broker.wire.clients import Link, LiveClient
from whimbrel.broker.wire.notices import REPORT
from whimbrel.errors import InvalidValueError
from whimbrel.log.compact import move_body
from whimbrel.model.place import Place
from whimbrel.mqtt.packets import Publish
from whimbrel.mqtt.properties import NO_PROPERTIES
from whimbrel.node.memory import PLACE_BYTES
from whimbrel.shape.variables import DEVICE_BYTES

__all__ = ["Moves"]

_NUMBER = rb"-?[0-9]{1,3}(?:\.[0-9]{1,32})?"
_MOVE = re.compile(rb'\s*\{\s*"place"\s*:\s*"(%s),(%s)"\s*\}\s*' % (_NUMBER, _NUMBER))
"""The usual form of such a report; any other form takes the full path, with the same result."""


class Moves:
    """Handles the reports of moving devices."""

    def __init__(self, commits: CommitQueue, state: BrokerState, admission: Admission, authorizer: Authorizer) -> None:
        self._commits, self._state, self._admission, self._authorizer = commits, state, admission, authorizer

    def handle(self, link: Link, client: LiveClient, packets: Sequence[Publish], now: int) -> int:
        """Handle the first *packets*, as long as they are reports that only move the device; return their count."""
        if not self._admission.takes_publications or not self._authorizer.may_publish(link, client.id, REPORT):
            return 0
        state, commits, device = self._state, self._commits, client.id
        grows = 0 if device in state.hold.places else PLACE_BYTES + DEVICE_BYTES
        if grows and state.memory.refusal(grows, is_lasting=True) is not None:
            return 0
        append, read, name = commits.append_body, _MOVE.fullmatch, client.id_bytes
        taken, seq = 0, commits.seq
        for topic, payload, qos, retain, _, _, properties in packets:
            if qos or retain or topic != REPORT or properties is not NO_PROPERTIES:
                break
            found = read(payload)
            if found is None:
                break
            try:
                place = Place(float(found[1]), float(found[2]))
            except InvalidValueError:
                break
            append(move_body(seq, now, place.latitude, place.longitude, name), now)
            state.node.note_move(device, seq, place, now)
            if commits.waiting:
                commits.enter_appended(seq, partial(state.move, device, seq, place, now), is_owed=False)
            else:
                state.move(device, seq, place, now)
            seq += 1
            taken += 1
        if taken:
            counters = state.volatile.counters
            counters.received += taken
            counters.reports += taken
            if not commits.waiting:
                state.tick(now)
        return taken
