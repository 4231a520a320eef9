"""The log and the view of a broker when it starts: a long replay is written down, if the disk takes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from whimbrel.broker.settings.config import Config, NodeSettings
from whimbrel.broker.shell.disk.storage import Restored, Storage
from whimbrel.broker.state.routes import Routes
from whimbrel.hold.store.interface import StoreUnavailableError
from whimbrel.hold.store.sqlite import SqliteStore
from whimbrel.model.notification import Notification

FACTS = 1_500


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Return the settings of a broker whose log is longer than its view."""
    config = replace(Config(), node=NodeSettings(data=str(tmp_path)))
    storage = Storage(config)
    storage.log.open()
    for seq in range(1, FACTS + 1):
        storage.log.append(Notification(node="node-1", seq=seq, published_at=seq, subject="a"))
    storage.log.sync()
    storage.close()
    return config


def _started(config: Config) -> Restored:
    storage = Storage(config)
    _, restored = storage.open(Routes())
    storage.close()
    return restored


def test_what_was_replayed_once_is_not_replayed_again(config: Config) -> None:
    """Though the broker was killed as soon as it listened: else each start would take longer than the last."""
    assert _started(config).replayed == FACTS
    assert _started(config).replayed == 0


def test_a_full_disk_is_no_reason_not_to_start(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there can still be read and served; the reason is told, and the next start replays the same."""

    def full(*_: object) -> None:
        raise StoreUnavailableError("view", "database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "commit", full)
        assert "disk is full" in (_started(config).unwritten or "")
    assert _started(config).replayed == FACTS
