"""The view writer: whatever moment the broker stops in, the view has every row of the number it says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from broker_rig import NODE, Rig, publishing

from whimbrel.broker.shell.disk.storage import Storage
from whimbrel.broker.shell.disk.view_writer import ViewWriter
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.hold.rows import Key
from whimbrel.hold.sessions import PIECE


class _View:
    """A view in memory, in place of the file of ``Storage``."""

    def __init__(self) -> None:
        self.applied = 0
        self.rows: dict[Key, bytes] = {}

    def write_view(self, applied: int, put: dict[Key, bytes], drop: set[Key]) -> None:
        """Change rows."""
        assert not put.keys() & drop
        self.applied = applied
        self.rows = {key: row for key, row in self.rows.items() if key not in drop} | put

    def replace_view(self, applied: int, rows: dict[Key, bytes]) -> None:
        """Have other rows."""
        self.applied, self.rows = applied, rows


class _Later(Executor):
    """A thread that does nothing until it is told to."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Take a task."""
        future: Future[Any] = Future()
        self.tasks.append((future, lambda: fn(*args, **kwargs)))
        return future

    def work(self) -> None:
        """Do what there is to do."""
        for future, task in self.tasks:
            future.set_result(task())
        self.tasks.clear()


@pytest.fixture
def loop() -> Any:
    """Return an event loop that runs only when it is told to."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def _writer(rig: Rig, view: _View, pool: Executor) -> ViewWriter:
    return ViewWriter(rig.broker, cast("Storage", view), pool)


def _everything(state: BrokerState) -> dict[Key, bytes]:
    state.view.touch_all()
    return state.view.changes()[0]


def _turn(loop: asyncio.AbstractEventLoop, seconds: float = 0.0) -> None:
    loop.run_until_complete(asyncio.sleep(seconds))


def _with_many_absent(rig: Rig, count: int) -> None:
    for number in range(count):
        rig.subscriber(f"client-{number}", "a/b", qos=1, expiry_s=3_600).drop()
    rig.settle()


def _is_applying(rig: Rig) -> bool:
    return rig.broker.is_applying


def test_a_stop_while_rows_are_gathered_loses_none_of_them(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    """Many rows are gathered over several turns; those of the first turns count as well."""
    rig, view = Rig(tmp_path), _View()
    writer = _writer(rig, view, _Later())
    _with_many_absent(rig, 200)
    assert rig.state.view.has_many_changes
    writer.turn(loop)
    assert writer.is_writing
    writer.finish()
    assert view.applied == rig.broker.applied
    assert view.rows == _everything(rig.state)
    _turn(loop, 0.01)  # the turn of the loop that would have gathered more


def test_a_stop_while_a_commit_is_under_way_commits_after_it(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    """Its rows must not come after those of the end."""
    rig, view = Rig(tmp_path), _View()
    with ThreadPoolExecutor(1) as pool:
        writer = _writer(rig, view, pool)
        writer.turn(loop)
        _with_many_absent(rig, 20)
        writer.finish()
        assert view.rows == _everything(rig.state)
        assert view.applied == rig.broker.applied
        _turn(loop)


def test_no_view_knows_half_a_publication(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    """Of one that takes several pieces nothing is gathered before the last, and a stop does them all."""
    rig, view, pool = Rig(tmp_path), _View(), _Later()
    writer = _writer(rig, view, pool)
    _with_many_absent(rig, PIECE + 50)
    rig.state.view.discard_changes()
    publisher = rig.client("publisher")
    publisher.send(publishing("a/b", b"for all", 1, 1))
    rig.broker.on_sync(rig.log.sync())
    assert _is_applying(rig)
    before = rig.broker.applied
    writer.turn(loop)
    assert writer.is_writing
    assert not pool.tasks
    writer.finish()
    assert not _is_applying(rig)
    assert view.applied == rig.broker.applied == before + 1
    restored = BrokerState.restore(NODE, _everything(rig.state).items())
    assert sum(1 for _ in restored.hold.pending()) == PIECE + 50
    pending = {key for key in view.rows if key[0] == "pending"}
    assert len(pending) == PIECE + 50


def test_the_view_is_written_however_many_publications_take_pieces(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    """Between two of them; to look now and then would never find that moment."""
    rig, view, pool = Rig(tmp_path), _View(), _Later()
    writer = _writer(rig, view, pool)
    _with_many_absent(rig, PIECE + 50)
    rig.state.view.discard_changes()
    publisher = rig.client("publisher")
    for number in range(1, 6):
        publisher.send(publishing("a/b", b"for all", 1, number))
    rig.broker.on_sync(rig.log.sync())
    assert _is_applying(rig)
    writer.turn(loop)
    rig.work()
    for _ in range(20):
        _turn(loop, 0.003)
        if pool.tasks:
            break
    pool.work()
    assert view.applied == rig.broker.applied
    assert len([key for key in view.rows if key[0] == "pending"]) == 5 * (PIECE + 50)


def test_the_view_is_written_after_many_reports(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    """The rows of policies, one for each device that reported, are gathered a few at a time like all others."""
    rig, view, pool = Rig(tmp_path), _View(), _Later()
    writer = _writer(rig, view, pool)
    for number in range(300):
        rig.client(f"client-{number}").send(publishing("$whimbrel/report", b'{"battery": 1}'))
    rig.settle()
    rig.state.view.touch_all()
    writer.turn(loop)
    for _ in range(20):
        _turn(loop, 0.003)
        if pool.tasks:
            break
    pool.work()
    assert view.applied == rig.broker.applied
    assert view.rows == _everything(rig.state)
    assert len([key for key in view.rows if key[0] == "device"]) == 300
