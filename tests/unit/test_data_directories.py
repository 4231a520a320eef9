"""Data directories of every format that there has been: each is opened as it was, and a newer one is refused.

``tests/data/data-directory-N.tar.xz`` was made by a broker of that format, which held one message for a session that
was away, retained another, and had cut its log twice; it was stopped, not killed. None of them is ever made again.
"""

from __future__ import annotations

import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from whimbrel.broker.config import Config, NodeSettings
from whimbrel.broker.shell.disk.storage import Storage
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.routes import Routes
from whimbrel.hold.private import private_session
from whimbrel.hold.store import sqlite
from whimbrel.hold.store.interface import NewerStoreError
from whimbrel.log import layout, segments
from whimbrel.log.checkpoints import codec
from whimbrel.log.errors import NewerLogError
from whimbrel.log.verification import verify

KEPT = sorted((Path(__file__).parent.parent / "data").glob("data-directory-*.tar.xz"))
NODE, LAST = "node-1", 102


@pytest.fixture(params=KEPT, ids=lambda path: path.name)
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of a data directory of another day."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "data"


def started(data: Path) -> tuple[BrokerState, int]:
    """Start and stop; return the state, and the checkpoint that was begun with."""
    storage = Storage(replace(Config(), node=NodeSettings(name=NODE, data=str(data))))
    state, restored = storage.open(Routes())
    assert restored.recovery.last_seq == LAST
    storage.close()
    return state, restored.checkpoint


def check(state: BrokerState) -> None:
    """Check that a state is the one that was left."""
    (subscription,) = state.hold.subscriptions(private_session("kept-subscriber"))
    assert (subscription.subject_filter, subscription.qos) == ("kept/t", 1)
    (held,) = state.held.by_seq.values()
    assert (held.subject, held.payload) == ("kept/t", b"held for years")
    retained = state.retained.get("kept/r")
    assert retained is not None
    assert retained.payload == b"retained for years"


def test_it_is_opened_with_its_view(data: Path) -> None:
    """As it was left."""
    state, checkpoint = started(data)
    check(state)
    assert checkpoint == 0


def test_it_is_opened_without_its_view(data: Path) -> None:
    """By its checkpoint and the segments after it; also by the older one alone."""
    (data / f"view-{NODE}.sqlite").unlink()
    shutil.copytree(data, data.parent / "older")
    state, checkpoint = started(data)
    check(state)
    assert checkpoint == 98
    layout.checkpoint_path(data.parent / "older" / "log", NODE, 98).unlink()
    state, checkpoint = started(data.parent / "older")
    check(state)
    assert checkpoint == 87


def test_nothing_is_wrong_with_it(data: Path) -> None:
    """Every segment, record and checkpoint."""
    found = verify(data / "log")
    assert (found.problems, found.checkpoints, found.segments) == ([], 2, 3)


@pytest.mark.parametrize(
    ("module", "name", "error"),
    [
        (layout, "FORMAT", NewerLogError),
        (segments, "_VERSION", NewerLogError),
        (codec, "FORMAT", NewerLogError),
        (sqlite, "FORMAT", NewerStoreError),
    ],
)
def test_an_older_version_refuses_it(
    data: Path, module: object, name: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a sentence, and nothing is changed: log, segments, checkpoints and view each say their format."""
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    monkeypatch.setattr(module, name, 0)
    with pytest.raises(error, match="newer Whimbrel"):
        started(data)
    after = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    assert {path: after.get(path) for path in before} == before
