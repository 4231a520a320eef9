"""The garbage collector of a broker: circles go, and what stays is not looked at again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from whimbrel.broker.shell import collector as module
from whimbrel.broker.shell.collector import Collector


class _Circle:
    """Something that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Return the collector in force."""
    collector = Collector()
    collector.begin()
    yield collector
    collector.end()


@pytest.mark.usefixtures("collector")
def test_new_circles_are_found() -> None:
    """As ever."""
    seen = weakref.ref(_Circle())
    gc.collect(0)
    assert seen() is None


@pytest.mark.usefixtures("collector")
def test_what_stays_is_not_looked_at_again() -> None:
    """Only what came since the last look is there to be looked at; the rest is still freed by counting."""
    kept = [[] for _ in range(1_000)]  # type: ignore[var-annotated]  # lists, which the collector knows
    gc.collect(0)
    assert not any(each is kept for generation in range(3) for each in gc.get_objects(generation))
    frozen = gc.get_freeze_count()
    kept.clear()
    assert gc.get_freeze_count() <= frozen - 1_000


def test_everything_is_looked_at_when_there_is_twice_as_much(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Circles that were frozen are found then, and not before."""
    circle = _Circle()
    seen = weakref.ref(circle)
    gc.collect(0)
    del circle
    collector.turn()
    assert seen() is not None
    monkeypatch.setattr(module, "_MUCH", 0)
    collector._most = 0
    collector.turn()
    assert seen() is None
