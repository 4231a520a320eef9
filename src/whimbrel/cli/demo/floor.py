"""The floor of the ward, drawn as a plan: rooms with the last vital signs of each bed, the corridor, the station.

Rule: the plan is as wide as five rooms, and needs 76 columns; it is a pure function of values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from whimbrel.cli.demo.view import Bed, Owner
from whimbrel.sim.ward.monitors import BADGES, BEDS

__all__ = ["FLOOR_COLUMNS", "FLOOR_LINES", "floor"]

_ROOM = 14
_ROOMS_BELOW = 5
FLOOR_COLUMNS, FLOOR_LINES = _ROOMS_BELOW * (_ROOM + 1) + 1, 7
_ABOVE, _BELOW = BEDS[:-_ROOMS_BELOW], BEDS[-_ROOMS_BELOW:]
_STATION = FLOOR_COLUMNS - len(_ABOVE) * (_ROOM + 1) - 2
_WALL = "dim"


def floor(beds: Mapping[str, Bed], batteries: Mapping[str, int], owners: Sequence[Owner]) -> Text:
    """Return the floor plan: unusual values are red, and a bed without any reading yet is empty."""
    here = ", ".join(owner.name for owner in owners if owner.here and not owner.name[-1].isdigit())
    text = Text(no_wrap=True, overflow="crop")
    _border(text, "┌┬┐", [*((bed, _ROOM) for bed in _ABOVE), ("station", _STATION)])
    _row(text, [*(_vitals(beds.get(bed)) for bed in _ABOVE), Text(f" here: {here or 'unknown yet'}", style="green")])
    _border(text, "├┴┤", [*(("", _ROOM) for _ in _ABOVE), ("", _STATION)])
    corridor = Text(" corridor")
    for badge in BADGES:
        charge = batteries.get(badge)
        said = "unknown yet" if charge is None else f"{charge} %"
        corridor.append(f"    {badge} ")
        corridor.append(said, style="bold red" if charge is not None and charge < 20 else "dim")
    _row(text, [corridor])
    _border(text, "├┬┤", [(bed, _ROOM) for bed in _BELOW])
    _row(text, [_vitals(beds.get(bed)) for bed in _BELOW])
    _border(text, "└┴┘", [("", _ROOM)] * _ROOMS_BELOW)
    text.right_crop(1)
    return text


def _border(text: Text, ends: str, rooms: Sequence[tuple[str, int]]) -> None:
    left, between, right = ends[0], ends[1], ends[2]
    parts = [f"─{name}{'─' * (width - len(name) - 1)}" if name else "─" * width for name, width in rooms]
    text.append(left + between.join(parts) + right + "\n", style=_WALL)


def _row(text: Text, cells: Sequence[Text]) -> None:
    last = len(cells) - 1
    for number, cell in enumerate(cells):
        width = FLOOR_COLUMNS - 2 - last * (_ROOM + 1) if number == last else _ROOM
        cell.truncate(width, overflow="ellipsis", pad=True)
        text.append("│", style=_WALL)
        text.append_text(cell)
    text.append("│\n", style=_WALL)


def _vitals(bed: Bed | None) -> Text:
    if bed is None:
        return Text(" –", style="dim")
    text = Text(" ")
    text.append(f"♥ {bed.pulse:>3}", style="bold red" if bed.is_racing else "green")
    text.append("  O₂ ")
    text.append("–" if bed.oxygen is None else f"{bed.oxygen}", style="bold red" if bed.is_short_of_breath else "green")
    return text
