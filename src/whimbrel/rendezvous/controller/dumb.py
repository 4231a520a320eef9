"""Dumb devices: a headset or a mouse that knows one device, and pages it whether it is here or not (Huang, 5.4.4).

A dumb device does not run our protocol, so it cannot receive messages. Its pair is configured: the address of the
smart device that it is paired with. The controller has one state for each smart device:

- ``AWAY``: the smart device is not here. Its pages are answered in its place; the dumb device is authenticated with its
  fixed PIN, parked, and held until the smart one comes.
- ``ASLEEP``: the smart device has published and is parked. The controller listens on its page channel without
  answering; when it hears a page, it tells the smart device to listen, and the publication counts as answered.
- ``AWAKE``: the smart device is here and listens for itself, or does not want to be found.
- ``YIELDING``: the dumb device pages the smart one, or is about to. The controller ignores these pages for
  ``ignore_us``.

Rule: a page does not show who sends it; the controller knows the caller only after it has answered the page. A caller
that is not paired with the smart device is disconnected at once.
Rule: every use of another device's address is a fact for the log (``NoteKind.STAND_IN``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import text
from whimbrel.rendezvous.controller.commands import Authenticate, Note, NoteKind, SwitchRole, UseAddress
from whimbrel.rendezvous.controller.openings import Record, Stage
from whimbrel.rendezvous.controller.piconet import Member
from whimbrel.rendezvous.controller.state import State
from whimbrel.rendezvous.events import Address, EventId, Kind, Publication, read_address
from whimbrel.rendezvous.messages import WakeUp
from whimbrel.rendezvous.refusals import Refusal
from whimbrel.rendezvous.stand_in import StandIn

__all__ = ["MAX_PAIRS", "DumbDevices", "DumbPair", "PairState", "check_pairs", "read_pair"]

MAX_PAIRS = 64
"""Most pairs of one controller; each smart device in them needs a receiver of its own."""

_MAX_PIN_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DumbPair:
    """A dumb device, the smart device that it pages, and the PIN that its maker gave it."""

    dumb: Address
    smart: Address
    pin: str = field(default="0000", repr=False)

    def __post_init__(self) -> None:
        for name in ("dumb", "smart"):
            object.__setattr__(self, name, read_address(getattr(self, name)))
        if self.dumb == self.smart:
            raise InvalidValueError("smart", self.smart, "another address than that of the dumb device")
        if self.pin:  # a mouse's is blank
            text("pin", self.pin, max_bytes=_MAX_PIN_BYTES)


def read_pair(text: object) -> DumbPair:
    """Parse a pair: ``DUMB=SMART``, two addresses, optionally followed by ``/PIN``."""
    allowed = "DUMB=SMART, two addresses, and /PIN behind them if it is not 0000"
    if not isinstance(text, str) or text.count("=") != 1:
        raise InvalidValueError("dumb", text, allowed)
    dumb, _, rest = text.partition("=")
    smart, slash, pin = rest.partition("/")
    return DumbPair(dumb=read_address(dumb), smart=read_address(smart), pin=pin if slash else "0000")


def check_pairs(pairs: Iterable[DumbPair]) -> tuple[DumbPair, ...]:
    """Check that each dumb device has one smart device, and that no smart device is dumb; return *pairs*."""
    found = tuple(pairs)
    if len(found) > MAX_PAIRS:
        raise InvalidValueError("dumb pairs", len(found), f"at most {MAX_PAIRS}")
    dumb = [each.dumb for each in found]
    for each in found:
        if dumb.count(each.dumb) > 1:
            raise InvalidValueError("dumb", each.dumb, "each dumb device once: it supports one connection")
        if each.smart in dumb:
            raise InvalidValueError("smart", each.smart, "a device that is not dumb itself")
    return found


class PairState(Enum):
    """State of the smart device of a pair; it decides how the controller treats the pages for that device."""

    AWAY = "away"
    ASLEEP = "asleep"
    AWAKE = "awake"
    YIELDING = "yielding"


_MODES = {
    PairState.AWAY: StandIn.ANSWER,
    PairState.ASLEEP: StandIn.LISTEN,
    PairState.AWAKE: StandIn.OFF,
    PairState.YIELDING: StandIn.OFF,
}


@dataclass(slots=True)
class _Smart:
    """State of one smart device that dumb devices page."""

    pairs: list[DumbPair]
    mode: StandIn = StandIn.OFF
    ignored_until: int = 0
    seen_until: int = 0
    """Time until which the device counts as present because an inquiry heard it."""


class DumbDevices:
    """The dumb devices of a controller; *drop* disconnects a member."""

    def __init__(
        self, state: State, pairs: Iterable[DumbPair], *, drop: Callable[[Member, Refusal, int], None]
    ) -> None:
        self._state, self._drop = state, drop
        self._pairs = {each.dumb: each for each in check_pairs(pairs)}
        if self._pairs and not state.parameters.has_park:
            raise InvalidValueError("has_park", found=False, allowed="true where dumb devices are configured (5.4.4)")
        self._smart: dict[Address, _Smart] = {}
        for each in self._pairs.values():
            self._smart.setdefault(each.smart, _Smart([])).pairs.append(each)
        self._held: dict[Address, None] = {}
        """Dumb devices that are connected to us and take us for their smart device; the longest held is first."""
        self._asked: dict[Address, int] = {}
        """Dumb devices that were sent the PIN, each with the time until which it may answer."""
        self._woken: dict[EventId, tuple[Member, int]] = {}
        """Publications whose device was told to listen, each with that device and its deadline for confirming."""
        self._updated_at = 0

    # -- what happens --------------------------------------------------------------------------------------------------

    def catch(self, member: Member, as_address: Address, *, now: int) -> None:
        """Authenticate a caller that was answered in the place of *as_address*, or drop it if it is not paired."""
        pair = self._pairs.get(member.address)
        if pair is None or pair.smart != as_address:
            self._note(as_address, member.address, detail="refused: not paired")
            self._drop(member, Refusal.NOT_PAIRED, now)
            return
        self._asked[member.address] = now + self._state.parameters.answer_us
        self._state.out += [SwitchRole(member.address), Authenticate(member.address, pair.pin)]

    def authenticate(self, address: Address, *, is_accepted: bool) -> None:
        """Park a dumb device that accepted its PIN; a device that refused it hangs up by itself."""
        pair = self._pairs.get(address)
        if pair is None or self._asked.pop(address, None) is None:
            return
        self._note(pair.smart, address, detail="holds" if is_accepted else "refused: PIN")
        if is_accepted:
            self._held[address] = None
            self._state.settle(address)

    def overhear(self, smart: Address, *, now: int) -> None:
        """Tell a smart device to listen if it is asleep, because somebody pages it."""
        record = self._state.publication_of(smart)
        if record is not None and smart in self._smart and self._find_state(smart, now) is PairState.ASLEEP:
            self._wake(record, now=now)

    def find(self, smart: Address, *, now: int) -> bool:
        """Record that an inquiry heard *smart*; return True if its dumb device pages it now: it is not published."""
        known = self._smart.get(smart)
        if known is None:
            return False
        known.seen_until = now + self._state.parameters.connect_us
        if self._state.piconet.get(smart) is not None:
            return False
        if self._holds(known):
            self._state.introduced.put(smart, value=True, now=now)
            self._let_go(smart, now=now)
        return now < known.ignored_until

    def meet(self, record: Record, *, now: int) -> bool:
        """Answer the publication *record* if a dumb device is held for its owner; False if there is none."""
        known = self._smart.get(record.owner)
        if record.kind is not Kind.PUBLICATION or known is None or not self._holds(known):
            return False
        return self._wake(record, now=now)

    def confirm(self, member: Member, identifier: EventId) -> bool:
        """Record that a smart device listens; return ``False`` if no such confirmation is awaited from it."""
        awaited = self._woken.get(identifier)
        if awaited is None or awaited[0] is not member:
            return False
        self._finish(identifier)
        self._note(member.address, None, detail="confirmed")
        self._state.settle(member.address, has_scans_off=False)  # it has just been told to listen
        return True

    def lose(self, member: Member) -> None:
        """Remove all state of a device that is gone."""
        for identifier in [each for each, (awaited, _) in self._woken.items() if awaited is member]:
            self._finish(identifier)
        self._held.pop(member.address, None)
        self._asked.pop(member.address, None)

    # -- time ----------------------------------------------------------------------------------------------------------

    def update(self, *, now: int) -> None:
        """Drop devices that did not answer in time, and change the treatment of pages where a state changed."""
        self._updated_at = now
        for identifier in [each for each, (_, due) in self._woken.items() if due <= now]:
            self._drop(self._woken[identifier][0], Refusal.SILENT, now)
            self._finish(identifier)
        for address in [each for each, due in self._asked.items() if due <= now]:
            del self._asked[address]
            member = self._state.piconet.get(address)
            if member is not None:
                self._drop(member, Refusal.SILENT, now)
        for smart, known in self._smart.items():
            mode = _MODES[self._find_state(smart, now)]
            if mode is known.mode:
                continue
            known.mode = mode
            record = self._state.publication_of(smart) if mode is StandIn.LISTEN else None
            offset = record.event.clock_offset if record is not None and isinstance(record.event, Publication) else None
            self._state.out.append(UseAddress(smart, mode, offset))
            self._note(smart, None, detail=mode.value)

    @property
    def next_due(self) -> int | None:
        """Time of the next deadline, at which ``update`` must be called."""
        due = [at for _, at in self._woken.values()] + list(self._asked.values())
        ignored = [each for each in self._smart.values() if each.mode is StandIn.OFF]
        times = [at for each in ignored for at in (each.ignored_until, each.seen_until)]
        return min([*due, *(at for at in times if at > self._updated_at)], default=None)

    def states(self, *, now: int) -> dict[Address, PairState]:
        """Return the state of each smart device; for tests and reports."""
        return {smart: self._find_state(smart, now) for smart in self._smart}

    @property
    def held(self) -> frozenset[Address]:
        """The dumb devices that are connected to the controller in the place of their smart device."""
        return frozenset(self._held)

    # -- work ----------------------------------------------------------------------------------------------------------

    def _find_state(self, smart: Address, now: int) -> PairState:
        known, record = self._smart[smart], self._state.publication_of(smart)
        if now < known.ignored_until:
            return PairState.YIELDING
        member = self._state.piconet.get(smart)
        if member is not None:
            is_open = record is not None and record.stage is Stage.OPEN
            return PairState.ASLEEP if is_open and member.has_layer else PairState.AWAKE
        if now < known.seen_until or record is not None:
            return PairState.AWAKE
        return PairState.AWAY

    def _holds(self, known: _Smart) -> bool:
        return any(each.dumb in self._held for each in known.pairs)

    def _wake(self, record: Record, *, now: int) -> bool:
        """Tell the owner of *record* to listen, let a dumb device of it go, and remove the answered publication."""
        state = self._state
        member = state.piconet.get(record.owner)
        if member is None or not member.has_layer or not state.piconet.has_seats_for(member):
            return False
        member.conversations += 1
        self._woken[record.id] = member, now + state.parameters.answer_us
        self._let_go(record.owner, now=now, record=record)
        state.erase(record, now=now, is_remembered=True)
        state.tell(member, WakeUp(record.id))
        return True

    def _let_go(self, smart: Address, *, now: int, record: Record | None = None) -> None:
        """Disconnect the dumb device that is held for *smart*, and ignore its pages for a while.

        If several are held, the one held longest is disconnected: two would page the smart device at the same time
        and collide (Figure 4-9). The next one follows when the smart device publishes again, or is found again.
        """
        known = self._smart[smart]
        known.ignored_until = now + self._state.parameters.ignore_us
        dumb = next((each for each in self._held if self._pairs[each].smart == smart), None)
        identifier = None if record is None or record.event.is_restricted else record.id
        self._note(smart, dumb, detail="heard" if dumb is None else "lets go", identifier=identifier)
        member = None if dumb is None else self._state.piconet.get(dumb)
        if member is not None:
            self._drop(member, Refusal.PARTNER_IS_HERE, now)

    def _finish(self, identifier: EventId) -> None:
        member, _ = self._woken.pop(identifier)
        member.conversations -= 1

    def _note(self, smart: Address, other: Address | None, *, detail: str, identifier: EventId | None = None) -> None:
        """Append a fact for the log; it names the smart device even if its event names groups: its address is used."""
        self._state.out.append(
            Note(kind=NoteKind.STAND_IN, id=identifier, address=smart, other_address=other, detail=detail)
        )
