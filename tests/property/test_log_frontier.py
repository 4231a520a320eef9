"""The frontier of a log: what a fresh look would find, at every moment, without looking at everything again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ordered import NODE, a_history

from whimbrel.log import layout
from whimbrel.log.reader import DurableEnd, LogReader, proven_seq
from whimbrel.log.segments import HEADER_BYTES, NEVER, Header
from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import Fact

FRESH = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # each example has its own folder
FACTS = a_history(300)


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here loses power, so nobody waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


class Node:
    """A node that writes, dies and comes back."""

    def __init__(self, directory: Path, *, segment_bytes: int) -> None:
        self._directory, self._segment_bytes = directory, segment_bytes
        self.log = self._opened()

    def _opened(self) -> LogWriter:
        log = LogWriter(self._directory, NODE, segment_bytes=self._segment_bytes)
        log.open()
        return log

    def append(self, count: int) -> None:
        """Remember some facts."""
        for _ in range(count):
            self.log.append(FACTS[self.log.next_seq - 1])

    def die(self, part: float, tail: bytes) -> None:
        """Lose power: of what nobody waited for a part stays, then comes what the disk had there."""
        (_, path), end = layout.segments(self._directory, NODE)[-1], self.log._durable.size
        self.log._release()
        data = path.read_bytes()
        path.write_bytes(data[: end + int((len(data) - end) * part)] + tail)

    def come_back(self) -> None:
        """Cut what is torn, and go on."""
        self.log = self._opened()


STEPS = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 4)),
    st.tuples(st.just("write on"), st.integers(1, 4)),
    st.tuples(st.just("append"), st.integers(1, 2)),
    st.tuples(st.sampled_from(["wait", "settle", "close"]), st.none()),
    st.tuples(st.just("die"), st.tuples(st.floats(0, 1), st.sampled_from([b"", bytes(40), b"noise" * 9]))),
)


def played(node: Node, steps: list[tuple[str, Any]]) -> Iterator[str]:
    """Do what is asked, and yield after everything that others could see."""
    for name, what in steps:
        match name:
            case "write" | "write on":
                node.append(what)
                node.log.sync(wait=name == "write")
            case "append":
                node.append(what)
            case "wait":
                node.log.sync()
            case "settle":
                node.log.settle()
            case "close":
                node.log.close()
                yield name
                node.come_back()
            case _:
                node.die(*what)
                yield "dead"
                node.come_back()
        yield name


@FRESH
@given(
    steps=st.lists(STEPS, max_size=30), segment_bytes=st.sampled_from([1, 300, 1_000, 1 << 20]), every=st.integers(2, 5)
)
def test_a_frontier_is_what_a_fresh_look_finds(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]], segment_bytes: int, every: int
) -> None:
    """Groups that were waited for or not, segments that roll, power that fails: whoever asks always, or seldom."""
    directory = tmp_path_factory.mktemp("log") / "log"
    always, seldom, before = DurableEnd(directory, NODE), DurableEnd(directory, NODE), 0
    assert always.seq() == proven_seq(directory, NODE) == 0
    node = Node(directory, segment_bytes=segment_bytes)
    for number, name in enumerate(played(node, steps)):
        fresh = proven_seq(directory, NODE)
        if name == "dead":  # a mark may be lost that was seen; what it said was durable, and stays
            assert max(fresh, before) <= always.seq() <= node.log.durable_seq
            continue
        assert always.seq() == always.seq() == fresh
        if number % every == 0:
            assert seldom.seq() == fresh
        assert before <= fresh <= node.log.written_seq
        before = fresh
    node.log.close()
    assert always.seq() == seldom.seq() == node.log.durable_seq == proven_seq(directory, NODE)


class _Counted:
    """A stream that counts what is read of it."""

    def __init__(self, stream: Any, read: list[int]) -> None:
        self._stream, self._read = stream, read

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size)
        self._read.append(len(data))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


@pytest.mark.parametrize("is_settled", [True, False])
def test_only_what_is_new_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_settled: bool) -> None:
    """A log of gigabytes is asked for every second: what was proven is not looked at again."""
    frontier, read = DurableEnd(tmp_path, NODE), list[int]()
    node = Node(tmp_path, segment_bytes=1 << 30)
    path = layout.segments(tmp_path, NODE)[0][1]
    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *how: _Counted(opened(self, *how), read))
    sizes = [path.stat().st_size] * 2
    for _ in range(60):
        node.append(5)
        node.log.sync()
        if is_settled:
            node.log.settle()
        sizes.append(path.stat().st_size)
        read.clear()
        assert frontier.seq() == node.log.durable_seq - (0 if is_settled else 5)
        begun = sizes[-2] if is_settled else sizes[-3]  # the group that no mark followed is looked at once more
        assert sizes[-1] - sizes[-2] <= sum(read) <= sizes[-1] - begun + 2 * HEADER_BYTES + 1
    assert sizes[-1] > 20 * (sizes[-1] - sizes[-3])


def test_a_log_that_was_removed_and_begun_anew_is_another(tmp_path: Path) -> None:
    """Numbers begin again, and what was proven is not."""
    directory = tmp_path / "log"
    frontier = DurableEnd(directory, NODE)
    for count in (30, 3, 40):
        node = Node(directory, segment_bytes=1 << 20)
        node.append(count)
        node.log.close()
        assert frontier.seq() == count
        shutil.rmtree(directory)
        assert frontier.seq() == 0


def test_a_segment_that_is_not_whole_yet_proves_those_before(tmp_path: Path) -> None:
    """A copy may have its first bytes only; what it follows is there."""
    node = Node(tmp_path, segment_bytes=1 << 20)
    node.append(7)
    node.log.sync()
    node.log._release()
    frontier = DurableEnd(tmp_path, NODE)
    assert frontier.seq() == 0
    header = Header(node=NODE, first=8, last_at=NEVER, salt=1).pack()
    for length in (0, 1, HEADER_BYTES - 1, HEADER_BYTES):
        layout.segment_path(tmp_path, NODE, 8).write_bytes(header[:length])
        assert frontier.seq() == proven_seq(tmp_path, NODE) == 7


# -- readers that go on ----------------------------------------------------------------------------------------------


@FRESH
@given(
    steps=st.lists(STEPS.filter(lambda step: step[0] != "die"), max_size=20),
    ahead=st.lists(st.integers(-3, 12), min_size=1, max_size=20),
    segment_bytes=st.sampled_from([1, 300, 1 << 20]),
)
def test_a_reader_that_is_extended_reads_each_fact_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]], ahead: list[int], segment_bytes: int
) -> None:
    """As a stream does: up to a number, which grows, over segments that follow each other while they are written."""
    directory = tmp_path_factory.mktemp("log")
    node, found, last = Node(directory, segment_bytes=segment_bytes), list[Fact](), 0
    reader = LogReader(directory, NODE, last=0)
    for number, _ in enumerate(played(node, steps)):
        last = max(last, reader.next_seq - 1 + ahead[number % len(ahead)])
        reader.extend(last)
        found += reader.facts()
        assert found == FACTS[: min(last, node.log.written_seq)]
        assert reader.next_seq == len(found) + 1 or not found
    node.log.close()
    reader.extend(node.log.durable_seq)
    assert [*found, *reader.facts()] == FACTS[: node.log.durable_seq]
