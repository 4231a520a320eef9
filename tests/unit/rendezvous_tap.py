"""A tap on every simulated radio: the lines of the thesis's figures, as they happen."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.unit.rendezvous_rig import ALICE, BOB

from whimbrel.rendezvous.events import Address
from whimbrel.rendezvous.radio.interface import (
    Authenticated,
    InquiryResult,
    LinkLost,
    LinkMade,
    Overheard,
    RadioEvent,
    RoleSwitched,
)
from whimbrel.rendezvous.radio.simulated.air import SimulatedRadio
from whimbrel.rendezvous.stand_in import StandIn
from whimbrel.rendezvous.wire import decode, name_of
from whimbrel.sim.hall import Hall

__all__ = ["Tap"]


class Tap:
    """Writes down what radios do and what happens to them, one line each."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, hall: Hall, letters: Mapping[Address, str] | None = None
    ) -> None:
        self.lines: list[str] = []
        self._names = {hall.controller.core.address: "C", **(letters or {BOB: "P", ALICE: "S"})}
        names, lines, tell = self._names, self.lines, SimulatedRadio.tell

        def watch(action: str, word: str) -> None:
            original = getattr(SimulatedRadio, action)

            def called(radio: SimulatedRadio, *args: object, **options: object) -> object:
                line = f"{names[radio.address]} {word}"
                if args and isinstance(args[0], str):
                    line += f" {names[Address(args[0])]}"
                if len(args) > 1 and isinstance(args[1], bytes):
                    line += f" {name_of(decode(args[1]))}"
                if action == "set_scans":
                    line += " " + ("+".join(scan for scan, is_on in options.items() if is_on) or "off")
                if len(args) > 1 and isinstance(args[1], StandIn):
                    line += f" {args[1].value}"
                if options.get("is_on", True) and lines[-1:] != [line]:
                    lines.append(line)
                return original(radio, *args, **options)

            monkeypatch.setattr(SimulatedRadio, action, called)

        def told(radio: SimulatedRadio, event: RadioEvent) -> None:
            who, other = names[radio.address], names[event.address]
            if isinstance(event, InquiryResult) and f"{who} hears {other}" not in lines:
                lines.append(f"{who} hears {other}")
            elif isinstance(event, LinkMade) and event.is_caller:
                lines.append(f"{who} connects {other}")
            elif isinstance(event, RoleSwitched) and event.is_master:
                lines.append(f"{who} is master of {other}")
            elif isinstance(event, Overheard):
                lines.append(f"{who} hears a page for {other}")
            elif isinstance(event, LinkMade) and event.as_address is not None:
                lines.append(f"{who} answers {other} as {names[event.as_address]}")
            elif isinstance(event, Authenticated):
                lines.append(f"{other} {'accepts' if event.is_accepted else 'refuses'} the PIN of {who}")
            elif isinstance(event, LinkLost) and hasattr(radio, "pin") and radio.pin is not None:
                lines.append(f"{who} is disconnected")
            tell(radio, event)

        for action, word in {
            "inquire": "inquires",
            "page": "pages",
            "send": "says to",
            "park": "parks",
            "unpark": "unparks",
            "set_scans": "scans",
            "stand_in": "as",
        }.items():
            watch(action, word)
        monkeypatch.setattr(SimulatedRadio, "tell", told)
