"""The data directory of a broker, made without one: a log of some segments, its checkpoints, a cut."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from ordered import NODE, a_history

from whimbrel.broker.settings.config import Config, NodeSettings
from whimbrel.broker.shell.disk.storage import Restored, Storage
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.routes import Routes
from whimbrel.hold.rows import Key
from whimbrel.log import layout
from whimbrel.log.checkpoints.codec import CheckpointHeader
from whimbrel.log.checkpoints.folder import save
from whimbrel.log.writer import LogWriter

FACTS = 300
"""More than in some segments of the smallest size."""


def settings_of(data: Path) -> Config:
    """Return the settings of a broker whose data is there."""
    return replace(Config(), node=NodeSettings(name=NODE, data=str(data)))


def written(data: Path) -> None:
    """Write a log of several segments."""
    with LogWriter(data / "log", NODE, segment_bytes=2_000) as log:
        for fact in a_history(FACTS):
            log.append(fact)
            log.sync()


def started(data: Path, *, accepts_loss: bool = False) -> tuple[dict[Key, bytes], Restored]:
    """Start and stop; return the rows of the state, and what was found."""
    storage = Storage(settings_of(data), accepts_loss=accepts_loss)
    state, restored = storage.open(Routes())
    state.view.touch_all()
    rows, _ = state.view.changes()
    storage.close()
    return rows, restored


def checkpointed(data: Path, seq: int) -> None:
    """Make a checkpoint of the number *seq*, as a broker does."""
    state = BrokerState(NODE)
    for fact in a_history(FACTS)[:seq]:
        state.apply(fact)
    state.view.touch_all()
    rows, _ = state.view.changes()
    save(data / "log", CheckpointHeader(node=NODE, seq=seq, state_at=0, made_at=0, salt=1), rows.items())


def cut(data: Path, *, up_to: int) -> None:
    """Remove the segments that have nothing after *up_to*."""
    found = layout.segments(data / "log", NODE)
    for (_, path), (following, _) in pairwise(found):
        if following - 1 <= up_to:
            path.unlink()


def without_view(data: Path) -> None:
    """Lose the view."""
    for path in data.glob("view-*"):
        path.unlink()
