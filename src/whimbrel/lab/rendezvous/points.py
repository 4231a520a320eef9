"""Points of the rendezvous experiments: a function that simulates one case, and its settings."""

from __future__ import annotations

from collections.abc import Callable

from whimbrel.lab.own_processes import OwnPoint

__all__ = ["make_point"]

_SOURCES = ("whimbrel.rendezvous", "whimbrel.sim.rendezvous", "whimbrel.sim.hall")


def make_point(play: Callable[..., dict[str, object]], **settings: object) -> OwnPoint:
    """Return the point that calls *play* with *settings*."""
    return OwnPoint(make=f"{play.__module__}:{play.__name__}", settings=settings, sources=_SOURCES)
