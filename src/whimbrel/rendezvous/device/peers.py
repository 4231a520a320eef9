"""Peers: what two devices say to each other about groups, once they are connected (Huang, 2.3, Figures 2-11 and 2-12).

Joining: a device sends its token and public key to the owner of a group. The owner checks that they belong to the
connected device, decides, and answers with a group token; the device checks the group token before it stores it.
Verifying: a device asks its peer about a group with a fresh challenge, and checks token and answer by itself; neither
owner nor controller takes part. Between members of one group further authentication is skipped, and that is reported.

Rule: a device proves only groups that it named in the event through which it met the peer, or asks the peer about.
Rule: the paged device proves after the paging one. A stranger that pages in the place of the expected device learns
nothing.
Rule: a proof that answers an older challenge is ignored, and a peer that leaves a question unanswered is not verified.
Rule: peers may send any bytes. A peer is remembered only while it is connected; at most ``MAX_KEYS`` of its questions
wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.controller.parameters import Parameters
from whimbrel.rendezvous.controller.proofs.members import Challenges, Members
from whimbrel.rendezvous.device.admission import Admission
from whimbrel.rendezvous.device.commands import DeviceCommand, KeepToken, SayPeer, Tell, Verified
from whimbrel.rendezvous.events import MAX_KEYS, Address, GroupKey
from whimbrel.rendezvous.refusals import Refusal
from whimbrel.rendezvous.tokens import (
    DeviceKeys,
    GroupOwner,
    TokenError,
    TokenFault,
    check_device_token,
    check_group_token,
)
from whimbrel.rendezvous.wire import SIGNATURE_BYTES, MalformedMessageError, decode

__all__ = ["JOIN_US", "TOKEN_LIFE_US", "Peers"]

JOIN_US = 60_000_000
"""Time, in microseconds, that a device waits for the owner's decision, which a person may have to make."""
TOKEN_LIFE_US = 365 * 86_400_000_000
"""Lifetime, in microseconds, of a group token that is issued over the air."""


@dataclass(slots=True, eq=False)
class _Peer:
    """One connected device."""

    is_caller: bool
    """Whether we paged it."""
    shown: set[GroupKey]
    """The groups that may be proven to it."""
    to_ask: deque[GroupKey]
    asked: m.Ask | None = None
    due_at: int = 0
    is_verified: bool = False
    held: list[m.Ask] = field(default_factory=list)
    """Questions of this peer that wait until it is verified."""
    joining: tuple[GroupKey, int] | None = None
    """The group that we asked it to admit us to, and the time until which we wait."""
    applied: m.Join | None = None
    """The peer's request to join, which waits for our user's decision."""
    is_denied: bool = False


class Peers:
    """The devices that this one is connected to, apart from the controller."""

    def __init__(
        self,
        address: Address,
        *,
        keys: DeviceKeys | None,
        tokens: dict[GroupKey, bytes],
        owner: GroupOwner | None,
        admission: Admission,
        nonce_key: bytes | None,
        answer_us: int,
    ) -> None:
        self._address, self._keys, self._tokens = address, keys, tokens
        self._owner, self._admission, self._answer_us = owner, admission, answer_us
        self._challenges = None if nonce_key is None else Challenges(nonce_key)
        self._members = Members(Parameters())
        self._peers: dict[Address, _Peer] = {}

    # -- connections ---------------------------------------------------------------------------------------------------

    def connect(
        self, address: Address, groups: Iterable[GroupKey], *, is_caller: bool, now: int
    ) -> list[DeviceCommand]:
        """Remember a device that is connected, and begin to verify the *groups* through which it was met."""
        self._peers[address] = _Peer(is_caller, set(groups), deque(groups if self._challenges is not None else ()))
        return self._ask_next(address, now)

    def lose(self, address: Address) -> list[DeviceCommand]:
        """Remove a device that is gone."""
        peer = self._peers.pop(address, None)
        if peer is None or peer.joining is None:
            return []
        return [Tell(what="not admitted", address=address, reason="the connection was lost")]

    def timer(self, *, now: int) -> list[DeviceCommand]:
        """End the verifications and join requests that peers did not answer in time."""
        done: list[DeviceCommand] = []
        for address, peer in self._peers.items():
            if peer.asked is not None and peer.due_at <= now:
                peer.asked = None
                peer.to_ask.clear()
                done += self._end_verification(address, peer, "it did not answer")
            if peer.joining is not None and peer.joining[1] <= now:
                peer.joining = None
                done.append(Tell(what="not admitted", address=address, reason="the owner did not answer"))
        return done

    @property
    def next_due(self) -> int | None:
        """Time at which ``timer`` must be called; None without a deadline."""
        due = [each.due_at for each in self._peers.values() if each.asked is not None]
        due += [each.joining[1] for each in self._peers.values() if each.joining is not None]
        return min(due, default=None)

    # -- joining a group -----------------------------------------------------------------------------------------------

    def join(self, address: Address, group: GroupKey, *, now: int) -> list[DeviceCommand]:
        """Ask the device at *address*, the owner of *group*, to admit us."""
        peer = self._peers.get(address)
        if peer is None or self._keys is None:
            reason = "it is not connected" if peer is None else "this device has no keys"
            return [Tell(what="not admitted", address=address, reason=reason)]
        peer.joining = group, now + JOIN_US
        join = m.Join(token=self._keys.token(self._address), device_key=self._keys.public)
        return [SayPeer(address, join)]

    def decide(self, address: Address, *, is_admitted: bool, now: int) -> list[DeviceCommand]:
        """Admit or refuse the device at *address*, as its owner decided."""
        peer = self._peers.get(address)
        if peer is None or peer.applied is None:
            return []
        join, peer.applied = peer.applied, None
        return self._settle(address, peer, join, is_admitted=is_admitted, now=now)

    def _consider(self, address: Address, peer: _Peer, join: m.Join, now: int) -> list[DeviceCommand]:
        if self._owner is None:
            return [_refuse_join(address, Refusal.NOT_OWNER)]
        try:
            check_device_token(join.token, device_key=join.device_key, address=address)
        except TokenError:
            return [_refuse_join(address, Refusal.WRONG_TOKEN)]
        decision = False if peer.is_denied else self._admission(address, join.device_key)
        if decision is not None:
            is_news = not decision and not peer.is_denied
            key = f"its public key is {join.device_key.hex()}"
            told: list[DeviceCommand] = [Tell(what="kept out", address=address, reason=key)] if is_news else []
            return [*self._settle(address, peer, join, is_admitted=decision, now=now), *told]
        if peer.applied is not None:
            return []  # the owner decides on the key that was shown: a second one would be admitted in its place
        peer.applied = join
        return [Tell(what="asks to join", address=address, reason=f"its public key is {join.device_key.hex()}")]

    def _settle(
        self, address: Address, peer: _Peer, join: m.Join, *, is_admitted: bool, now: int
    ) -> list[DeviceCommand]:
        assert self._owner is not None
        if not is_admitted:
            peer.is_denied = True  # so that the user is not asked about it again
            return [_refuse_join(address, Refusal.NOT_ADMITTED)]
        token = self._owner.admit(join.token, device_key=join.device_key, peer=address, expires_at=now + TOKEN_LIFE_US)
        return [SayPeer(address, m.GroupTokenIssued(token)), Tell(what="admitted", address=address)]

    def _take_token(self, address: Address, peer: _Peer, token: bytes, now: int) -> list[DeviceCommand]:
        """Check and store a group token: the group's owner must have signed it, over our own device token (2.3)."""
        if peer.joining is None or self._keys is None:
            return [Tell(what="unexpected", address=address, reason="a group token that was not asked for")]
        group, peer.joining = peer.joining[0], None
        try:
            member = check_group_token(token, group=group, address=self._address, now=now)
            if member.device_key != self._keys.public:
                raise TokenError(TokenFault.WRONG_DEVICE)
        except TokenError as error:
            return [Tell(what="not admitted", address=address, reason=str(error))]
        self._tokens[group] = token
        return [KeepToken(group, token), Tell(what="joined", address=address)]

    # -- verifying each other ------------------------------------------------------------------------------------------

    def verify(self, address: Address, group: GroupKey, *, now: int) -> list[DeviceCommand]:
        """Ask the device at *address* to prove that it is a member of *group*."""
        peer = self._peers.get(address)
        if peer is None or self._challenges is None:
            reason = "it is not connected" if peer is None else "this device has no secret to make challenges of"
            return [Tell(what="not verified", address=address, reason=reason)]
        peer.shown.add(group)
        peer.to_ask.append(group)
        peer.is_verified = False
        return [] if peer.asked is not None else self._ask_next(address, now)

    def _ask_next(self, address: Address, now: int) -> list[DeviceCommand]:
        peer = self._peers[address]
        if peer.is_verified or not peer.to_ask or self._challenges is None:
            return []
        group = peer.to_ask.popleft()
        peer.asked, peer.due_at = m.Ask(group=group, challenge=self._challenges.next()), now + self._answer_us
        return [SayPeer(address, peer.asked)]

    def _take_proof(self, address: Address, peer: _Peer, proof: m.Proof, now: int) -> list[DeviceCommand]:
        asked = peer.asked
        if asked is None or proof.challenge != asked.challenge:
            return []  # it answers an older question
        peer.asked = None
        try:
            own = self._own(asked.group, now)
            member, _ = self._members.check(proof, asked, address=address, controller=self._address, now=now)
        except TokenError as error:
            return self._ask_next(address, now) or self._end_verification(address, peer, str(error))
        peer.is_verified = True
        peer.to_ask.clear()
        verified = Verified(address, asked.group, expires_at=member.expires_at, skips_authentication=own)
        return [verified, *self._answer_held(address, peer)]

    def _own(self, group: GroupKey, now: int) -> bool:
        """Return whether we are a member of *group*; if so, a peer's token must have at least our token's epoch."""
        token = self._tokens.get(group)
        if token is None:
            return False
        try:
            member = check_group_token(token, group=group, address=self._address, now=now)
        except TokenError:
            return False
        self._members.see_epoch(group, member.epoch)
        return True

    def _end_verification(self, address: Address, peer: _Peer, reason: str) -> list[DeviceCommand]:
        told = Tell(what="not verified", address=address, reason=reason)
        return [told, *self._answer_held(address, peer)]

    def _answer_held(self, address: Address, peer: _Peer) -> list[DeviceCommand]:
        held, peer.held = peer.held, []
        return [each for asked in held for each in self._prove(address, peer, asked)]

    def _prove(self, address: Address, peer: _Peer, asked: m.Ask) -> list[DeviceCommand]:
        """Answer a challenge; if the group may not be proven to this peer, the answer proves nothing."""
        if self._keys is None:
            return []
        is_shown = asked.group in peer.shown and (peer.is_caller or peer.is_verified)
        answer = (
            self._keys.answer(asked.challenge, group=asked.group, address=self._address, controller=address)
            if is_shown
            else bytes(SIGNATURE_BYTES)
        )
        proof = m.Proof(
            group=asked.group,
            challenge=asked.challenge,
            device_key=self._keys.public,
            answer=answer,
            token=self._tokens.get(asked.group) if is_shown else None,
        )
        return [SayPeer(address, proof)]

    def _be_asked(self, address: Address, peer: _Peer, asked: m.Ask) -> list[DeviceCommand]:
        has_to_wait = asked.group in peer.shown and not peer.is_caller and not peer.is_verified
        if has_to_wait and (peer.asked is not None or peer.to_ask):
            if len(peer.held) < MAX_KEYS:
                peer.held.append(asked)
            return []
        return self._prove(address, peer, asked)

    # -- what a peer says ----------------------------------------------------------------------------------------------

    def hear(self, address: Address, data: bytes, *, now: int) -> list[DeviceCommand]:
        """Handle bytes received from a peer."""
        peer = self._peers.get(address)
        if peer is None:
            return []
        try:
            message = decode(data)
        except MalformedMessageError as error:
            return [Tell(what="malformed", address=address, reason=str(error))]
        match message:
            case m.Data(said):
                return [Tell(what="data", address=address, data=said)]
            case m.Join():
                return self._consider(address, peer, message, now)
            case m.GroupTokenIssued(token):
                return self._take_token(address, peer, token, now)
            case m.Ask():
                return self._be_asked(address, peer, message)
            case m.Proof():
                return self._take_proof(address, peer, message, now)
            case m.Refused(request="join", code=code, reason=reason) if peer.joining is not None:
                peer.joining = None
                return [Tell(what="not admitted", address=address, reason=f"{code}: {reason}")]
            case _:
                return [Tell(what="unexpected", address=address, reason=type(message).__name__)]


def _refuse_join(address: Address, refusal: Refusal) -> SayPeer:
    return SayPeer(address, m.Refused(request="join", code=refusal.code, reason=refusal.reason))
