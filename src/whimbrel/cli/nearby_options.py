"""What the commands of ``whimbrel nearby`` share: options, and how events and reports are printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.errors import InvalidValueError

if TYPE_CHECKING:  # sockets need not be loaded for other commands
    from whimbrel.nearby.group.outputs import Deliver, Note

__all__ = [
    "AsJson",
    "At",
    "CellM",
    "Fixes",
    "Gpsd",
    "Interface",
    "Loss",
    "Name",
    "ReachFile",
    "Relay",
    "Seconds",
    "Trust",
    "Type",
    "UdpPort",
    "Words",
    "print_event",
    "report_note",
    "say",
]

Type = Annotated[str, typer.Argument(metavar="TYPE", help="The event type, as the vocabulary has it.")]
Words = Annotated[
    Path,
    typer.Option(
        "--vocabulary", metavar="FILE", help='JSON: {"traffic light": {"status": "string"}}; all nodes share it.'
    ),
]
Name = Annotated[str, typer.Option("--name", metavar="NODE", help="Who we are; unlike every other node.")]
Interface = Annotated[str, typer.Option("--interface", metavar="NAME", help="The network interface.")]
UdpPort = Annotated[int, typer.Option("--udp-port", min=1, max=65_535, help="The UDP port that all nodes share.")]
At = Annotated[str | None, typer.Option("--place", metavar="LAT,LON", help="Where we are, if we stand.")]
Fixes = Annotated[
    Path | None,
    typer.Option("--fixes", metavar="FILE", help='Where we are going: JSON lines {"at_s": 0, "place": "53.34,-6.25"}.'),
]
Gpsd = Annotated[str | None, typer.Option("--gpsd", metavar="HOST[:PORT]", help="Ask a gpsd where we are.")]
Relay = Annotated[bool, typer.Option("--relay/--no-relay", help="Whether to repeat frames for others.")]
Seconds = Annotated[
    float | None, typer.Option("--seconds", metavar="S", min=0.1, help="Stop after so long; else at an interrupt.")
]
CellM = Annotated[int, typer.Option("--cell-m", metavar="M", help="The side of a cell; all nodes share it.")]
Trust = Annotated[
    list[str] | None, typer.Option("--trust", metavar="HEX", help="Believe only this public key; repeatable.")
]
ReachFile = Annotated[
    Path | None,
    typer.Option("--reach", metavar="FILE", help='Pretend a radio: JSON of whom each node hears, {"car": ["light"]}.'),
]
Loss = Annotated[float, typer.Option("--loss", metavar="P", min=0, max=1, help="Pretend a radio: lose frames.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


def print_event(found: Deliver, *, as_json: bool) -> None:
    """Print an event that was delivered, with the consumer's own attributes."""
    event = found.event
    seen = {each: value.hex() if isinstance(value, bytes) else value for each, value in found.attributes.items()}
    said = {"event": str(event.id), "type": event.subject, "attributes": seen, "left_ms": found.left_us / 1e3}
    text = json.dumps(
        {each: round(value, 1) if isinstance(value, float) else value for each, value in seen.items()},
        ensure_ascii=False,
    )
    say(said, f"{event.subject} {event.origin} {text}", as_json=as_json)


def report_note(note: Note, *, as_json: bool) -> None:
    """Print what matters to people; a contradiction of vocabularies ends the command."""
    from whimbrel.nearby.group.outputs import NoteKind

    group = note.group
    if note.kind is NoteKind.CONTRADICTED:
        raise InvalidValueError(
            f"vocabulary of {note.member}", f"another meaning of {group.subject!r}", "one meaning for each event type"
        )
    said = {"note": note.kind.value, "producer": group.producer, "type": group.subject}
    more = {"number": note.number, "member": note.member, "count": note.count}
    if note.kind not in {NoteKind.PROPAGATED, NoteKind.DISCARDED}:
        who = note.member or group.producer
        text = f"{note.kind.value}: {group.subject} {who}" + (f" ({note.count})" if note.count != 1 else "")
        say({**said, **more}, text, as_json=as_json, err=True)


def say(said: dict[str, object], text: str, *, as_json: bool, err: bool = False) -> None:
    """Print one thing, as an object or as text, at once."""
    typer.echo(json.dumps(said, ensure_ascii=False) if as_json else text, err=err)
    (sys.stderr if err else sys.stdout).flush()
