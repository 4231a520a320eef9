"""Printing of events and reports for ``whimbrel nearby``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import typer

from whimbrel.errors import InvalidValueError, Phrase

if TYPE_CHECKING:  # other commands need not load sockets
    from whimbrel.nearby.group.outputs import Deliver, Note

__all__ = ["print_event", "report_note", "say"]


def print_event(found: Deliver, *, as_json: bool) -> None:
    """Print a delivered event, with the attributes that the consumer adds."""
    event = found.event
    seen = {each: value.hex() if isinstance(value, bytes) else value for each, value in found.attributes.items()}
    said = {
        "event": str(event.id),
        "type": event.subject,
        "attributes": seen,
        "left_ms": found.left_us / 1e3,
        "signed": event.key is not None,
        "age_known": found.is_age_known,
    }
    text = json.dumps(
        {each: round(value, 1) if isinstance(value, float) else value for each, value in seen.items()},
        ensure_ascii=False,
    )
    mark = " (signed, but our clock is not set: it may be old)" if event.key and not found.is_age_known else ""
    say(said, f"{event.subject} {event.origin} {text}{mark}", as_json=as_json)


def report_note(note: Note, *, as_json: bool, is_settled: bool = False) -> None:
    """Print a node's report (*note*) that matters to people; raise an error if vocabularies or cell sizes conflict.

    If *is_settled*, a conflict is only printed: of two producers in conflict, the one that came later must give way.
    """
    from whimbrel.nearby.group.outputs import NoteKind

    group = note.group
    if note.kind is NoteKind.CONTRADICTED and not is_settled:
        raise InvalidValueError(
            f"vocabulary of {note.member}",
            Phrase(f"another meaning of {group.subject!r} than here"),
            "one meaning for each event type",
        )
    if note.kind is NoteKind.MISMATCHED and not is_settled:
        raise InvalidValueError(
            f"cells of {note.member}", Phrase("another size than here"), "one --cell-m for all nodes of a deployment"
        )
    said = {"note": note.kind.value, "producer": group.producer, "type": group.subject}
    more = {"number": note.number, "member": note.member, "count": note.count, "seconds": note.seconds}
    if note.kind not in {NoteKind.PROPAGATED, NoteKind.DISCARDED}:
        who = note.member or group.producer
        text = f"{note.kind.value}: {group.subject} {who}" + (f" ({note.count})" if note.count != 1 else "")
        text += "" if note.seconds is None else f" (its clock says {note.seconds:+.0f} s)"
        say({**said, **more}, text, as_json=as_json, err=True)


def say(said: dict[str, object], text: str, *, as_json: bool, err: bool = False) -> None:
    """Print one message at once, as a JSON object or as text."""
    typer.echo(json.dumps(said, ensure_ascii=False) if as_json else text, err=err)
    (sys.stderr if err else sys.stdout).flush()
