"""A controller with its radio taken away: what devices do goes in, what the controller commands comes out."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.controller import (
    Command,
    Connected,
    Controller,
    Disconnected,
    Found,
    Note,
    NotReached,
    Parameters,
    Said,
)
from whimbrel.rendezvous.controller.commands import Disconnect, KeepEpoch, NoteKind, Park, Send, Unpark
from whimbrel.rendezvous.events import Address, GroupKey, Publication, Subscription
from whimbrel.rendezvous.tokens import DeviceKeys, GroupOwner
from whimbrel.rendezvous.wire import encode

CONTROLLER = Address("00:00:00:00:00:01")
ALICE, BOB, CAROL, DAVE = (Address(f"00:00:00:00:00:0{digit}") for digit in "ABCD")
SECOND = 1_000_000
PHONE, PRINTER = 0x5A020C, 0x040680


def address(number: int) -> Address:
    """Return the address of the device with this *number*."""
    return Address(number.to_bytes(6, "big").hex(":").upper())


def publication(
    owner: Address = BOB, *, name: str = "Bob", device_class: int = PHONE, keys: tuple[GroupKey, ...] = ()
) -> Publication:
    """Return what *owner* publishes."""
    return Publication(address=owner, clock_offset=77, name=name, device_class=device_class, keys=keys)


class Rig:
    """Drives a controller; devices note their notifications by themselves unless *is_noting* is off."""

    def __init__(
        self,
        parameters: Parameters | None = None,
        *,
        is_noting: bool = True,
        epochs: Mapping[GroupKey, int] | None = None,
    ) -> None:
        self.core = Controller(parameters, address=CONTROLLER, nonce_key=b"k" * 32, epochs=epochs)
        self.now = 0
        self.is_noting = is_noting
        self.commands: list[Command] = []
        self.members: dict[Address, Member] = {}
        self.asked: dict[Address, list[tuple[m.Ask, int]]] = {}
        """What each device was asked, and when."""
        self._run(self.core.timer(now=0))

    # -- what happens ----------------------------------------------------------------------------------------------

    def connect(self, who: Address, *, is_caller: bool = True, has_layer: bool = True) -> list[Command]:
        """Let the device connect."""
        happened = Connected(address=who, is_caller=is_caller, has_layer=has_layer)
        return self._run(self.core.receive(happened, now=self.now))

    def say(self, who: Address, message: m.Message) -> list[Command]:
        """Let the device say *message*."""
        return self._run(self.core.receive(Said(who, encode(message)), now=self.now))

    def leave(self, who: Address) -> list[Command]:
        """Let the device disconnect."""
        return self._run(self.core.receive(Disconnected(who), now=self.now))

    def miss(self, who: Address) -> list[Command]:
        """Let the device not answer the controller's page."""
        return self._run(self.core.receive(NotReached(who), now=self.now))

    def find(self, who: Address, name: str = "Bob", device_class: int = PHONE) -> list[Command]:
        """Let the controller's inquiry hear the device."""
        happened = Found(address=who, clock_offset=77, name=name, device_class=device_class)
        return self._run(self.core.receive(happened, now=self.now))

    def publish(self, who: Address = BOB, *, name: str = "Bob", **more: object) -> list[Command]:
        """Connect the device if it is not, and let it publish."""
        self._present(who)
        return self.say(who, m.Publish(publication(who, name=name, **more)))  # type: ignore[arg-type]  # as there

    def subscribe(self, who: Address = ALICE, **template: object) -> list[Command]:
        """Connect the device if it is not, and let it subscribe."""
        self._present(who)
        return self.say(who, m.Subscribe(Subscription(**template)))  # type: ignore[arg-type]  # as there

    def wait(self, seconds: float) -> list[Command]:
        """Let time pass, timer by timer."""
        end, done = self.now + round(seconds * SECOND), list[Command]()
        while True:
            due = self.core.next_due
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            done += self._run(self.core.timer(now=self.now))
        self.now = end
        return [*done, *self._run(self.core.timer(now=end))]

    # -- what comes of it ------------------------------------------------------------------------------------------

    def _present(self, who: Address) -> None:
        if self.core._state.piconet.get(who) is None:
            self.connect(who)

    def _run(self, commands: Sequence[Command]) -> list[Command]:
        done, place = list(commands), 0
        while place < len(done) or self.core.is_busy:
            if place == len(done):
                done += self.core.timer(now=self.now)
                continue
            command, place = done[place], place + 1
            answer = self._answer(command) if isinstance(command, Send) else None
            if answer is not None and isinstance(command, Send):
                done += self.core.receive(Said(command.address, encode(answer)), now=self.now)
        self.commands += done
        return done

    def _answer(self, command: Send) -> m.Message | None:
        message = command.message
        if isinstance(message, m.Ask):
            self.asked.setdefault(command.address, []).append((message, self.now))
        if isinstance(message, m.Matched | m.WakeUp):
            return m.Noted(message.id) if self.is_noting else None
        member = self.members.get(command.address)
        return member.answer(message) if isinstance(message, m.Ask) and member is not None else None

    def open(self) -> set[str]:
        """Return the identifiers of the open events."""
        return {record.id for record in self.core.open_events()}


class Member:
    """A device that can prove its groups; *refuses* makes it silent, *wrong* makes it lie."""

    def __init__(self, who: Address, *owners: GroupOwner, seed: bytes = b"", expires_at: int = 10**15) -> None:
        self.address, self.keys = who, DeviceKeys((seed or who.encode()).ljust(32, b".")[:32])
        self.asked: list[m.Ask] = []
        self.is_silent = False
        self.tokens = {
            owner.public: owner.admit(
                self.keys.token(who), device_key=self.keys.public, peer=who, expires_at=expires_at
            )
            for owner in owners
        }

    def answer(self, asked: m.Ask) -> m.Proof | None:
        """Return the proof that was asked for."""
        self.asked.append(asked)
        if self.is_silent:
            return None
        token = self.tokens.get(asked.group) if asked.wants_token else None
        answer = self.keys.answer(asked.challenge, group=asked.group, address=self.address, controller=CONTROLLER)
        return m.Proof(
            group=asked.group, challenge=asked.challenge, device_key=self.keys.public, answer=answer, token=token
        )


def sent(commands: Sequence[Command], who: Address) -> list[m.FromController]:
    """Return the messages to *who*, but for the one that goes before every parking."""
    found = [each.message for each in commands if isinstance(each, Send) and each.address == who]
    return [message for message in found if not isinstance(message, m.Sleep)]


def notes(commands: Sequence[Command], kind: NoteKind | None = None) -> list[Note]:
    """Return the facts for the log."""
    return [each for each in commands if isinstance(each, Note) and kind in {None, each.kind}]


def script(commands: Sequence[Command]) -> list[str]:
    """Return *commands* as one line each, as in the thesis's figures; what goes to the disk is left out."""
    lines = []
    for each in commands:
        with contextlib.suppress(AttributeError):
            who = {ALICE: "S", BOB: "P", CAROL: "C", DAVE: "D"}.get(each.address, "?")  # type: ignore[union-attr, arg-type]  # so
        match each:
            case Send(_, message):
                lines.append(f"→{who} {type(message).__name__}{' ' + message.id if hasattr(message, 'id') else ''}")
            case Park() | Unpark():
                lines.append(f"{type(each).__name__.lower()} {who}")
            case Disconnect(_, reason):
                lines.append(f"disconnect {who} {reason.name}")
            case Note() | KeepEpoch():
                pass
            case _:
                named = f" {who}" if hasattr(each, "address") else ""
                lines.append(f"{type(each).__name__}{named}")
    return lines


def refusals(commands: Sequence[Command], who: Address) -> list[int]:
    """Return the codes of what was refused to *who*."""
    return [message.code for message in sent(commands, who) if isinstance(message, m.Refused)]
