"""A log that is checkpointed, cut and killed at any moment: the state is that of the whole log, and no number twice."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from ordered import NODE, a_history

from whimbrel.broker.settings.config import Config, LogSettings, NodeSettings
from whimbrel.broker.shell.disk.log_truncator import DutyCycle, LogTruncator, TruncationRun
from whimbrel.broker.shell.disk.storage import Storage
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.routes import Routes
from whimbrel.hold.rows import Key
from whimbrel.log import layout
from whimbrel.log.keeping.readers import lost_readers, register
from whimbrel.log.parts import part_rows
from whimbrel.log.reader import read
from whimbrel.model.rows import COLUMNS

FACTS = 400
BOUNDED = LogSettings(
    segment_bytes=65_536, retain_days=0, retain_bytes=12_000, retain_free_bytes=0, retain_reader_bytes=8_000
)


class Crash(BaseException):
    """The process ends here."""


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here loses power, so nobody waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


class Node:
    """A broker's storage without its sockets, which is killed now and then."""

    def __init__(self, folder: Path, settings: LogSettings = BOUNDED) -> None:
        self._config = replace(Config(), node=NodeSettings(name=NODE, data=str(folder)), log=settings)
        self.folder, self.log_folder = folder, folder / "log"
        self.start()

    def start(self) -> None:
        """Start."""
        self.storage = Storage(self._config)
        self.storage.log._segment_bytes = 1_500  # smaller than a broker may be told to have them
        self.state, self.restored = self.storage.open(Routes())
        self.keeper = LogTruncator(
            self.log_folder,
            NODE,
            self.folder / f"view-{NODE}.sqlite",
            self._config.log,
            pace=DutyCycle(sleep=lambda _: 0),
        )

    def kill(self) -> None:
        """End as a crash does."""
        self.storage.log._release()
        assert self.storage._store is not None
        self.storage._store.close()
        self.storage.heartbeat.close()

    def view(self) -> None:
        """Bring the view up to date."""
        self.storage.write_view(self.storage.log.next_seq - 1, *self.state.view.changes())

    def keep(self) -> TruncationRun | None:
        """Look after the log."""
        kept = self.keeper.keep(1)
        if kept is not None:
            assert not kept.troubles, kept.troubles
            self.keeper.tell(kept)
        return kept

    def size(self) -> int:
        """Return what segments and checkpoints take."""
        paths = [path for _, path in layout.segments(self.log_folder, NODE)]
        paths += [path for _, path in layout.checkpoints(self.log_folder, NODE)]
        return sum(path.stat().st_size for path in paths)


def rows_of(state: BrokerState) -> dict[Key, bytes]:
    """Return all of a state."""
    state.view.touch_all()
    return state.view.changes()[0]


@pytest.fixture(scope="module")
def expected() -> list[dict[Key, bytes]]:
    """Return the state after each number, by the whole log."""
    state, found = BrokerState(NODE), []
    for fact in a_history(FACTS):
        state.apply(fact)
        if fact.seq % 50 == 0:
            found.append(rows_of(state))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_cut_checkpointed_and_killed_at_random_it_is_the_same(
    tmp_path: Path, seed: int, expected: list[dict[Key, bytes]]
) -> None:
    """With the view lost now and then, too."""
    rng, node = random.Random(seed), Node(tmp_path)
    oldest = 0
    for fact in a_history(FACTS):
        assert fact.seq == node.storage.log.next_seq
        node.storage.log.append(fact)
        node.state.apply(fact)
        node.storage.log.sync()
        if rng.random() < 0.2:
            node.view()
        if rng.random() < 0.1:
            node.keep()
        if rng.random() < 0.03:
            node.kill()
            if rng.random() < 0.6:
                for path in node.folder.glob("view-*"):
                    path.unlink()
            node.start()
        if fact.seq % 50 == 0:
            rows = rows_of(node.state)
            assert rows == expected[fact.seq // 50 - 1]
            node.storage.replace_view(fact.seq, rows)  # what changed was taken from the view writer
        oldest = max(oldest, layout.segments(node.log_folder, NODE)[0][0])
    assert oldest > FACTS // 4
    node.kill()


def test_a_crash_at_each_step_of_keeping_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[dict[Key, bytes]]
) -> None:
    """Each write, rename and removal: the next start, without a view, has the state of the whole log."""
    step, is_done, history = 0, False, a_history(FACTS)[:250]
    while not is_done:
        node = Node(tmp_path / str(step))
        for fact in history:
            node.storage.log.append(fact)
            node.state.apply(fact)
            if fact.seq in {90, 170, 250}:
                node.storage.log.sync()
                node.view()
                if fact.seq < 250:
                    node.keep()
            elif fact.seq % 10 == 0:
                node.storage.log.sync()
        taken = 0

        def counted(real: object, at: int = step) -> object:
            def call(*args: object, **kwargs: object) -> object:
                nonlocal taken
                taken += 1
                if taken > at:
                    raise Crash
                return real(*args, **kwargs)  # type: ignore[operator]  # any function of the system

            return call

        with monkeypatch.context() as patch:
            for name in ("open", "write"):
                patch.setattr(os, name, counted(getattr(os, name)))
            for name in ("replace", "unlink"):
                patch.setattr(Path, name, counted(getattr(Path, name)))
            try:
                node.keep()
                is_done = True
            except Crash:
                pass
        node.kill()
        for path in node.folder.glob("view-*"):
            path.unlink()
        node.start()
        assert rows_of(node.state) == expected[4]
        assert node.storage.log.next_seq == 251
        facts = [fact.seq for fact in read(node.log_folder, NODE)]
        assert facts == list(range(facts[0], 251))
        node.kill()
        step += 1
    assert step > 8
    assert node.restored.checkpoint == 250
    assert layout.segments(node.log_folder, NODE)[0][0] > 1


def test_a_long_life_stays_within_its_bound(tmp_path: Path) -> None:
    """A dead stream, too, keeps only so much, and is named."""
    node = Node(tmp_path)
    register(node.log_folder, NODE, "dead-stream", seq=7, now=1)
    most = 0
    for fact in a_history(3_000, body_bytes=60):
        node.storage.log.append(fact)
        node.state.apply(fact)
        if fact.seq % 20 == 0:
            node.storage.log.sync()
            node.view()
            kept = node.keep()
            assert kept is not None
            most = max(most, node.size() - kept.disk.checkpoint_bytes)
    assert [each.name for each in lost_readers(node.log_folder, NODE)] == ["dead-stream"]
    assert node.keeper.totals.readers_lost == 1
    assert most < 12_000 + 2 * 8_000
    assert node.keeper.figures().log_cut_bytes > 10 * most
    assert (node.keeper.figures().log_oldest_seq or 0) > 2_000
    node.kill()


def test_what_is_cut_was_exported_before(tmp_path: Path) -> None:
    """Every number is in the export or still in a segment, and the export is a log that can be read."""
    archive = tmp_path / "archive"
    node = Node(tmp_path / "data", replace(BOUNDED, export=str(archive)))
    kept = None
    for fact in a_history(FACTS):
        node.storage.log.append(fact)
        node.state.apply(fact)
        node.storage.log.sync()
        if fact.seq % 100 == 0:
            node.view()
            kept = node.keep()
    assert kept is not None
    assert node.keeper.totals.cut_bytes
    assert not lost_readers(node.log_folder, NODE)
    exported = layout.exported_seq(archive, NODE)
    oldest = kept.disk.oldest
    assert 1 < oldest <= exported + 1
    found = {row["seq"] for table in COLUMNS for part in layout.parts(archive, table) for row in part_rows(part, table)}
    assert found >= set(range(1, oldest))
