"""Data directories of every format that there has been: each is opened as it was, and a newer one is refused.

``tests/data/data-directory-N.tar.xz`` was made by a broker of that format (``make_data_directory``), which held one
message for a session that was away, retained another, and had cut its log twice; from 2 on a device had chosen a
policy and said where it was. The broker was stopped, not killed. None of them is ever made again.
"""

from __future__ import annotations

import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from whimbrel.broker.settings.config import Config, NodeSettings
from whimbrel.broker.shell.disk.storage import Restored, Storage
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
NODE = "node-1"


class Left(NamedTuple):
    """What a broker left behind."""

    last: int
    checkpoints: tuple[int, int]
    segments: int
    has_policy: bool


LEFT = {
    1: Left(102, (87, 98), 3, has_policy=False),
    2: Left(74, (58, 67), 2, has_policy=True),
    3: Left(71, (53, 67), 3, has_policy=True),
}


class Directory(NamedTuple):
    """A copy of a data directory of another day."""

    data: Path
    left: Left


@pytest.fixture(params=KEPT, ids=lambda path: path.name)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Directory:
    """Return one."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return Directory(tmp_path / "data", LEFT[int(request.param.name.split("-")[2].partition(".")[0])])


def started(data: Path) -> tuple[BrokerState, Restored]:
    """Start and stop; return the state, and how it came."""
    storage = Storage(replace(Config(), node=NodeSettings(name=NODE, data=str(data))))
    state, restored = storage.open(Routes())
    storage.close()
    return state, restored


def check(state: BrokerState, left: Left) -> None:
    """Check that a state is the one that was left."""
    if left.has_policy:
        shape = state.decisions.shape
        assert shape.chosen("kept-phone") == "kept-policy"
        assert shape.manual("kept-phone", "kept-policy") == {"Withheld": 80}
        assert {"Battery": 0.1, "Place.latitude": 48.2}.items() <= dict(shape.automatic("kept-phone")).items()
    (subscription,) = state.hold.subscriptions(private_session("kept-subscriber"))
    assert (subscription.subject_filter, subscription.qos) == ("kept/t", 1)
    ((_, held),) = state.hold.all_kept()
    assert held is not None
    assert (held.subject, held.payload) == ("kept/t", b"held for years")
    retained = state.retained.get("kept/r")
    assert retained is not None
    assert retained.payload == b"retained for years"


def test_it_is_opened_with_its_view(kept: Directory) -> None:
    """As it was left."""
    state, restored = started(kept.data)
    check(state, kept.left)
    assert (restored.recovery.last_seq, restored.checkpoint) == (kept.left.last, 0)


def test_it_is_opened_without_its_view(kept: Directory) -> None:
    """By its checkpoint and the segments after it; also by the older one alone."""
    (kept.data / f"view-{NODE}.sqlite").unlink()
    other, (older, newer) = kept.data.parent / "older", kept.left.checkpoints
    shutil.copytree(kept.data, other)
    layout.checkpoint_path(other / "log", NODE, newer).unlink()
    for data, seq in ((kept.data, newer), (other, older)):
        state, restored = started(data)
        check(state, kept.left)
        assert (restored.recovery.last_seq, restored.checkpoint) == (kept.left.last, seq)


def test_nothing_is_wrong_with_it(kept: Directory) -> None:
    """Every segment, record and checkpoint."""
    found = verify(kept.data / "log")
    assert (found.problems, found.checkpoints, found.segments) == ([], 2, kept.left.segments)


def test_there_is_one_of_this_format() -> None:
    """A format that was changed needs one: see ``tests/data/make_data_directory.py``."""
    assert max(LEFT) == max(layout.FORMAT, codec.FORMAT, sqlite.FORMAT)
    assert [path.name for path in KEPT] == [f"data-directory-{number}.tar.xz" for number in sorted(LEFT)]


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
    kept: Directory, module: object, name: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a sentence, and nothing is changed: log, segments, checkpoints and view each say their format."""
    data = kept.data
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    monkeypatch.setattr(module, name, 0)
    with pytest.raises(error, match="newer Whimbrel"):
        started(data)
    after = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    assert {path: after.get(path) for path in before} == before
