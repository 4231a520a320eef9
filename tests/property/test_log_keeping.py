"""The plan of retention: what goes is old enough, never needed, and enough; readers lose their place by name only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.errors import InvalidValueError
from whimbrel.log import layout
from whimbrel.log.files import make_folder
from whimbrel.log.keeping.cutting import cut, on_disk
from whimbrel.log.keeping.plan import US_PER_DAY, Bounds, ClosedSegment, Plan, Reader, Reason, plan
from whimbrel.log.keeping.readers import Registration, lost_readers, name_for, read_registered, register, unregister
from whimbrel.log.reader import read
from whimbrel.log.writer import LogWriter
from whimbrel.model.notification import Notification

NODE = "node-1"
NOW = 100 * US_PER_DAY


@st.composite
def logs(draw: st.DrawFn) -> list[ClosedSegment]:
    """Return some closed segments, one after the other."""
    first, at, found = draw(st.integers(1, 50)), draw(st.integers(0, 80)) * US_PER_DAY, []
    for count, size, days in draw(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 99), st.integers(0, 20)))):
        at += days * US_PER_DAY
        found.append(ClosedSegment(first=first, last=first + count - 1, size_bytes=size, last_at=at))
        first += count
    return found


readers = st.lists(
    st.builds(
        Reader,
        name=st.sampled_from(["stream", "export", "backup"]),
        seq=st.integers(0, 120),
        renewed_at=st.integers(0, 100).map(lambda day: day * US_PER_DAY),
        lost_at=st.none() | st.just(3),
    ),
    max_size=3,
    unique_by=lambda each: each.name,
)
bounds = st.builds(
    Bounds,
    days=st.integers(0, 60),
    bytes=st.integers(0, 500),
    free_bytes=st.integers(0, 200),
    reader_bytes=st.integers(0, 300),
    reader_days=st.integers(0, 60),
)


@given(log=logs(), limit=st.integers(0, 120), free=st.integers(0, 400), who=readers, bounds=bounds)
def test_a_plan_cuts_enough_and_never_too_much(
    log: list[ClosedSegment], limit: int, free: int, who: list[Reader], bounds: Bounds
) -> None:
    """Whatever there is, and whoever reads."""
    found = plan(log, other_bytes=10, free_bytes=free, limit=limit, readers=who, bounds=bounds, now=NOW)
    going = found.segments
    assert list(going) == log[: len(going)]
    assert all(each.last <= limit for each in going)
    gone_to = going[-1].last if going else 0
    for each in who:
        is_alive = each not in found.expired and each.lost_at is None
        unread = sum(segment.size_bytes for segment in log if segment.last > each.seq)
        if each in found.lost:
            assert is_alive
            assert each.seq < gone_to
            assert unread > bounds.reader_bytes or Reason.FREE in found.reasons
        elif is_alive and going:
            assert each.seq >= gone_to or not unread
    rest = log[len(going) :]
    total = 10 + sum(each.size_bytes for each in rest)
    is_free = free + sum(each.size_bytes for each in going) >= bounds.free_bytes
    is_within = (not bounds.bytes or total <= bounds.bytes) and is_free
    is_young = not rest or not bounds.days or rest[0].last_at >= NOW - bounds.days * US_PER_DAY
    assert (is_within and is_young) or not rest or found.held_by or found.needs_checkpoint


def test_a_dead_reader_keeps_a_bounded_part_and_is_named() -> None:
    """It may be slow; it may not fill the disk."""
    log = [ClosedSegment(first=n * 10 + 1, last=n * 10 + 10, size_bytes=100, last_at=0) for n in range(9)]
    dead = Reader(name="stream-ward", seq=5, renewed_at=NOW)

    def planned(reader_bytes: int, free: int = 1_000) -> Plan:
        at_most = Bounds(bytes=300, free_bytes=100, reader_bytes=reader_bytes, reader_days=7)
        return plan(log, other_bytes=0, free_bytes=free, limit=60, readers=[dead], bounds=at_most, now=NOW)

    assert planned(900).held_by == ("stream-ward",)
    assert [each.name for each in planned(899).lost] == ["stream-ward"]
    assert [each.name for each in planned(900, free=50).lost] == ["stream-ward"]


def test_a_registration_that_is_not_renewed_keeps_nothing() -> None:
    """A stream that was deleted without a word is not waited for."""
    log = [ClosedSegment(first=1, last=10, size_bytes=100, last_at=0)]
    gone = Reader(name="old", seq=0, renewed_at=NOW - 8 * US_PER_DAY)
    at_most = Bounds(days=1, reader_bytes=1_000, reader_days=7)
    found = plan(log, other_bytes=0, free_bytes=0, limit=10, readers=[gone], bounds=at_most, now=NOW)
    assert (found.expired, found.lost, len(found.segments)) == ((gone,), (), 1)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log of several segments."""
    with LogWriter(tmp_path / "log", NODE, segment_bytes=300) as writer:
        for seq in range(1, 61):
            writer.append(Notification(node=NODE, seq=seq, published_at=seq, subject="a"))
            writer.sync()
    return tmp_path / "log"


def test_what_was_cut_is_gone_and_the_rest_can_be_read(log: Path) -> None:
    """Whole segments go; a reader that lost its place is marked before they do."""
    disk = on_disk(log, NODE)
    assert [each.first for each in disk.segments] == [first for first, _ in layout.segments(log, NODE)][:-1]
    register(log, NODE, "slow", seq=3, now=NOW)
    going = disk.segments[:3]
    size = cut(log, NODE, Plan(segments=going, lost=tuple(read_registered(log, NODE))))
    assert size == sum(each.size_bytes for each in going)
    assert [fact.seq for fact in read(log, NODE)] == list(range(going[-1].last + 1, 61))
    assert on_disk(log, NODE).oldest == going[-1].last + 1
    assert [(each.name, each.lost_at) for each in lost_readers(log, NODE)] == [("slow", 3)]
    register(log, NODE, "slow", seq=going[-1].last, now=NOW)
    assert not lost_readers(log, NODE)


def test_a_crash_while_cutting_leaves_no_gap(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever segment it was at."""
    going = on_disk(log, NODE).segments[:3]
    for step in range(3):

        def crash(_: int) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", crash)
        with pytest.raises(KeyboardInterrupt):
            cut(log, NODE, Plan(segments=going[step : step + 1]))
        assert [fact.seq for fact in read(log, NODE)] == list(range(going[step].last + 1, 61))


def test_a_file_that_is_no_registration_keeps_nothing(log: Path) -> None:
    """Names and contents may be anything."""
    folder = layout.segments_folder(log, NODE) / "readers"
    make_folder(folder)
    for name, content in [("a.json", b"{"), ("b.json", b"[]"), ("c.json", b'{"seq": "x"}'), ("-.json", b"{}")]:
        (folder / name).write_bytes(content)
    assert read_registered(log, NODE) == []
    with pytest.raises(InvalidValueError, match="name of a reader"):
        register(log, NODE, "../up", seq=1, now=1)
    register(log, NODE, "a", seq=1, now=1)
    unregister(log, NODE, "a")
    unregister(log, NODE, "a")
    assert read_registered(log, NODE) == []


def test_a_stream_renews_its_registration_now_and_then(log: Path, tmp_path: Path) -> None:
    """Under the same name each time it runs; and where it may not write, it reads all the same."""
    name = name_for("stream", tmp_path / "the tables")
    assert name == name_for("stream", tmp_path / "the tables") != name_for("stream", tmp_path / "others")
    mine = Registration(log, name)
    for at, seq in ((0, 5), (9_000_000, 6), (11_000_000, 7)):
        mine.renew({NODE: seq}, at)
        assert [(each.name, each.seq) for each in read_registered(log, NODE)] == [(name, 5 if seq < 7 else 7)]
    Registration(log / "whimbrel-log.json", name).renew({NODE: 8}, 0)
