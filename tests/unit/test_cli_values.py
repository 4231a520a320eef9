"""Durations in options: as people write them, and refused with what to write instead."""

from __future__ import annotations

import pytest
import typer

from whimbrel.cli.options.values import read_seconds, read_whole_seconds, seconds_between


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("15m", 900), ("1h", 3600), ("7d", 604_800), ("1.5h", 5400), ("250ms", 0.25), (60.0, 60)],
)
def test_a_duration_has_a_unit_or_is_in_seconds(text: str | float, seconds: float) -> None:
    """An hour is 1h in every option; seconds stay what they were."""
    assert read_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "1y", "-5", "nan", "inf", "1h30m", "9" * 400])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    """The message shows how one is written."""
    with pytest.raises(typer.BadParameter, match="such as 90s or 15m"):
        read_seconds(text)


def test_the_wire_has_whole_seconds() -> None:
    """A time to live of half a second would silently become none."""
    assert read_whole_seconds("1.5h") == 5_400
    with pytest.raises(typer.BadParameter, match="whole seconds"):
        read_whole_seconds("1500ms")


def test_bounds_are_named() -> None:
    """What is too long or too short says what is allowed."""
    assert seconds_between(1, 60)("1m") == 60
    with pytest.raises(typer.BadParameter, match="allowed is 1 s to 60 s"):
        seconds_between(1, 60)("1h")
