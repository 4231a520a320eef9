"""Whatever happens to the writer, what was acknowledged is there and nothing else is invented.

Crashes are simulated: the files are cut at every byte, and what follows the cut is nothing, zeros or noise.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from compacted import as_it_came
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ordered import NODE, a_history, histories, in_order

from whimbrel.errors import WhimbrelError
from whimbrel.log import layout
from whimbrel.log.errors import CorruptLogError, LogWriteError
from whimbrel.log.reader import LogReader, proven_seq, read
from whimbrel.log.records import BODY, MARK_BYTES, body_of, framed
from whimbrel.log.segments import HEADER_BYTES, NEVER, Header
from whimbrel.log.writer import LogWriter, Recovery
from whimbrel.model.facts import Fact
from whimbrel.model.notification import Notification

FRESH = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # each example has its own folder


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here loses power, so nobody waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


def die(log: LogWriter) -> None:
    """End the writer as a crash does: nothing is written, only the lock goes."""
    log._release()


@dataclass
class Written:
    """A log as a crashed node left it, and what it had told others at which length."""

    bodies: list[bytes]
    files: list[tuple[str, bytes]]
    told: list[tuple[tuple[int, int], int]]
    """(number of files, length of the last) after a sync, and the seq that was durable then."""

    def told_at(self, files: int, length: int) -> int:
        """Return the last seq that had been acknowledged when the log was so long."""
        return max((seq for at, seq in self.told if at <= (files, length)), default=0)

    def put(self, directory: Path, files: int, last: bytes) -> None:
        """Lay down the first *files* segments, the last of them as *last*."""
        folder = layout.segments_folder(directory, NODE)
        if not folder.exists():
            layout.create(directory)
            folder.mkdir(parents=True)
        for name, data in self.files[: files - 1]:
            if not (folder / name).exists() or (folder / name).stat().st_size != len(data):
                (folder / name).write_bytes(data)
        (folder / self.files[files - 1][0]).write_bytes(last)


def written(
    directory: Path, facts: list[Fact], rng: random.Random, *, segment_bytes: int = 1 << 20, segment_us: int = 0
) -> Written:
    """Write *facts*, some as compact records, with syncs at random places, some not waited for, and die."""
    log = LogWriter(directory, NODE, segment_bytes=segment_bytes, segment_us=segment_us)
    told, made = [], []
    log.open()
    for fact in facts:
        compact = as_it_came(fact) if rng.random() < 0.5 else None
        known, body = compact or (fact, body_of(fact)[0])
        made.append((known, body))
        log.append_body(body, body_of(fact)[1])
        if rng.random() < 0.2:
            log.sync(wait=False)
        elif rng.random() < 0.3:
            seq = log.sync()
            found = layout.segments(directory, NODE)
            told.append(((len(found), found[-1][1].stat().st_size), seq))
    die(log)
    files = [(path.name, path.read_bytes()) for _, path in layout.segments(directory, NODE)]
    assert list(read(directory, NODE)) == [fact for fact, _ in made[: log.written_seq]]
    assert proven_seq(directory, NODE) <= log.durable_seq
    return Written([body for _, body in made], files, told)


def bodies(directory: Path) -> list[bytes]:
    """Return the records that are whole, as they were written."""
    records = LogReader(directory, NODE).records()
    return [BODY.pack(seq, number) + payload for _, seq, number, payload in records]


def check(directory: Path, log: Written, files: int, length: int) -> Recovery:
    """Recover, and compare with what was written and with what had been told."""
    before = bodies(directory)
    writer = LogWriter(directory, NODE)
    recovery = writer.open()
    found = bodies(directory)
    die(writer)
    assert found == before == log.bodies[: len(found)]
    assert recovery.last_seq == len(found) >= log.told_at(files, length)
    assert proven_seq(directory, NODE) == len(found)
    return recovery


def nothing(_size: int, _rng: random.Random) -> bytes:
    """Return what follows the cut: nothing, the file ends."""
    return b""


def zeros(size: int, _rng: random.Random) -> bytes:
    """Return what follows the cut: blocks that never reached the disk."""
    return bytes(size)


def noise(size: int, rng: random.Random) -> bytes:
    """Return what follows the cut: whatever stood there before."""
    return rng.randbytes(size)


def crash_everywhere(folder: Path, facts: list[Fact], tail: Callable[[int, random.Random], bytes], **how: int) -> None:
    """Cut the log of *facts* at every byte of every segment, and recover each."""
    rng = random.Random(1)
    log = written(folder / "whole", facts, rng, **how)
    for files, (_, data) in enumerate(log.files, start=1):
        for length in range(len(data) + 1):
            size = (len(data) if length >= HEADER_BYTES else HEADER_BYTES) - length
            log.put(folder / "cut", files, data[:length] + tail(size, rng))
            check(folder / "cut", log, files, length)


@pytest.mark.parametrize("tail", [nothing, zeros, noise])
def test_a_crash_at_any_byte_loses_nothing_acknowledged(tmp_path: Path, tail: Callable[..., bytes]) -> None:
    """The promise that everything else stands on."""
    crash_everywhere(tmp_path, a_history(8), tail)


@pytest.mark.parametrize("how", [{"segment_bytes": 150}, {"segment_us": 1}], ids=["by size", "by age"])
@pytest.mark.parametrize("tail", [nothing, zeros, noise])
def test_nor_does_a_crash_while_segments_roll(tmp_path: Path, tail: Callable[..., bytes], how: dict[str, int]) -> None:
    """A new segment is the moment when two files change."""
    crash_everywhere(tmp_path, a_history(7, seed=3), tail, **how)
    assert len(layout.segments(tmp_path / "whole", NODE)) > 1


@pytest.mark.slow
@pytest.mark.parametrize(("tail", "facts"), [(nothing, 30), (zeros, 20), (noise, 20)])
def test_nor_does_a_crash_anywhere_in_a_long_log(tmp_path: Path, tail: Callable[..., bytes], facts: int) -> None:
    """Facts of all kinds, in several segments; it takes the square of their number."""
    crash_everywhere(tmp_path, a_history(facts), tail, segment_bytes=20 * facts)


@FRESH
@given(facts=histories(), seed=st.integers(0, 99), data=st.data())
def test_nor_does_any_history(
    tmp_path_factory: pytest.TempPathFactory, facts: list[Fact], seed: int, data: st.DataObject
) -> None:
    """Facts of every shape, cut anywhere."""
    folder, rng = tmp_path_factory.mktemp("log"), random.Random(seed)
    log = written(folder / "whole", facts, rng, segment_bytes=data.draw(st.sampled_from([300, 1 << 20])))
    files = data.draw(st.integers(1, len(log.files)))
    whole = log.files[files - 1][1]
    length = data.draw(st.integers(HEADER_BYTES, len(whole)))
    tail = data.draw(st.binary(max_size=100))
    log.put(folder / "cut", files, whole[:length] + tail)
    check(folder / "cut", log, files, length)


def test_a_group_whose_pages_came_in_any_order_is_cut(tmp_path: Path) -> None:
    """A disk may write the second page of a group and not the first; nobody was told of either."""
    log, facts = LogWriter(tmp_path, NODE), a_history(40)
    log.open()
    for fact in facts[:10]:
        log.append(fact)
    log.sync()
    (_, path), size = layout.segments(tmp_path, NODE)[0], 0
    size = path.stat().st_size
    for fact in facts[10:]:
        log.append(fact)
    log.sync()
    die(log)
    data = bytearray(path.read_bytes())
    data[size + 5 : size + 600] = bytes(595)  # the frames after it are whole
    path.write_bytes(data)
    recovery = LogWriter(tmp_path, NODE).open()
    assert (recovery.last_seq, recovery.cut_from) == (10, path)


@FRESH
@given(seed=st.integers(0, 999), lost=st.lists(st.tuples(st.integers(0), st.integers(1, 200)), min_size=1, max_size=3))
def test_a_power_failure_takes_back_only_what_nobody_waited_for(
    tmp_path_factory: pytest.TempPathFactory, seed: int, lost: list[tuple[int, int]]
) -> None:
    """Any pages of it may be missing, marks among them; what was durable is there, and the rest is a beginning."""
    directory, rng, facts = tmp_path_factory.mktemp("log"), random.Random(seed), a_history(30, seed=seed)
    log, durable_bytes = LogWriter(directory, NODE, segment_bytes=900), 0
    log.open()
    for fact in facts:
        log.append(fact)
        if rng.random() < 0.5:
            log.sync(wait=rng.random() < 0.2)
    durable, durable_bytes, path = log.durable_seq, log._durable.size, log._path
    die(log)
    data = bytearray(path.read_bytes())
    for at, size in lost:
        begin = durable_bytes + at % (len(data) - durable_bytes + 1)
        data[begin : begin + size] = bytes(len(data[begin : begin + size]))
    path.write_bytes(data)
    assert LogWriter(directory, NODE).open().last_seq >= durable
    found = list(read(directory, NODE))
    assert found == facts[: len(found)]


def flips(data: bytes, begin: int, end: int, rng: random.Random) -> Iterator[tuple[int, bytes]]:
    """Yield *data* with one bit wrong, for every byte from *begin* to *end*."""
    for offset in range(begin, end):
        changed = bytearray(data)
        changed[offset] ^= 1 << rng.randrange(8)
        yield offset, bytes(changed)


def test_damage_to_what_was_acknowledged_is_never_cut(tmp_path: Path) -> None:
    """A closed log is all proven: any wrong bit is told, with file and place, and nothing is changed."""
    with LogWriter(tmp_path, NODE) as log:
        for fact in a_history(12):
            log.append(fact)
    (_, path) = layout.segments(tmp_path, NODE)[0]
    data = path.read_bytes()
    for offset, changed in flips(data, 0, len(data) - MARK_BYTES, random.Random(2)):
        path.write_bytes(changed)
        for attempt in (lambda: LogWriter(tmp_path, NODE).open(), lambda: list(read(tmp_path, NODE))):
            with pytest.raises(WhimbrelError) as told:
                attempt()
            if isinstance(told.value, CorruptLogError):  # the header's version may have become a newer one
                assert told.value.path == path
                assert told.value.offset <= offset
        assert path.read_bytes() == changed


def test_damage_in_an_older_segment_is_told(tmp_path: Path) -> None:
    """Only the last segment has a tail that may be torn."""
    with LogWriter(tmp_path, NODE, segment_bytes=300) as log:
        for fact in a_history(30):
            log.append(fact)
            log.sync()
    first, second, *_ = (path for _, path in layout.segments(tmp_path, NODE))
    data = first.read_bytes()
    first.write_bytes(data[:-3])
    with pytest.raises(CorruptLogError, match="damaged at byte"):
        list(read(tmp_path, NODE))
    first.write_bytes(data)
    second.unlink()
    with pytest.raises(CorruptLogError, match="the next segment begins with"):
        list(read(tmp_path, NODE))


@FRESH
@given(data=st.binary(max_size=300), with_header=st.booleans())
def test_any_bytes_as_a_segment_give_facts_or_our_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, *, with_header: bool
) -> None:
    """No file makes us fall over."""
    header = Header(node=NODE, first=1, last_at=NEVER, salt=5).pack() if with_header else b""
    _try(tmp_path_factory.mktemp("log"), header + data)


@FRESH
@given(bodies=st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=80)), max_size=4))
def test_any_frames_give_facts_or_our_error(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[tuple[int, bytes]]
) -> None:
    """Not even one whose checksums are right."""
    header = Header(node=NODE, first=1, last_at=NEVER, salt=5)
    frames = [framed(BODY.pack(seq, number) + payload, 5) for seq, (number, payload) in enumerate(bodies, start=1)]
    _try(tmp_path_factory.mktemp("log"), header.pack() + b"".join(frames))


def _try(directory: Path, segment: bytes) -> None:
    layout.create(directory)
    path = layout.segment_path(directory, NODE, 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(segment)
    with suppress(WhimbrelError):
        list(read(directory, NODE))
    writer = LogWriter(directory, NODE)
    with suppress(WhimbrelError):
        writer.open()
    die(writer)


def test_a_length_is_not_believed_before_it_is_checked(tmp_path: Path) -> None:
    """A frame that claims 270 MB in a file of a hundred bytes takes no memory."""
    layout.create(tmp_path)
    path = layout.segment_path(tmp_path, NODE, 1)
    path.parent.mkdir(parents=True)
    claim = (270 << 20).to_bytes(4, "big") + bytes(20)
    path.write_bytes(Header(node=NODE, first=1, last_at=NEVER, salt=5).pack() + claim)
    assert LogWriter(tmp_path, NODE).open().cut_bytes == len(claim)


# -- a disk that fails -------------------------------------------------------------------------------------------------


class Disk:
    """Fails at the *at*-th write or fsync: a write may take half before it does."""

    def __init__(self, at: int) -> None:
        self.at, self.calls, self.failed = at, 0, ""

    def write(self, real: Callable[[int, memoryview], int], descriptor: int, data: memoryview) -> int:
        """Write, or fail."""
        self.calls += 1
        if self.calls == self.at:
            self.at, self.failed = self.at + 1, "write"  # half now, the rest is refused
            return real(descriptor, data[: len(data) // 2 or 1]) if len(data) > 1 else self._full()
        return self._full() if self.failed == "write" and self.calls == self.at else real(descriptor, data)

    def fsync(self, _descriptor: int) -> None:
        """Do nothing, or fail."""
        self.calls += 1
        if self.calls == self.at:
            self.failed = "fsync"
            self._full()

    @staticmethod
    def _full() -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def failing(at: int) -> Iterator[Disk]:
    """Give a disk that fails at its *at*-th call."""
    disk, real = Disk(at), os.write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: disk.write(real, descriptor, data))
        patch.setattr(os, "fsync", disk.fsync)
        yield disk


def run(directory: Path, facts: list[Fact], told: list[int]) -> str:
    """Write *facts* three at a time, a few unwaited, noting what was durable; return what the disk said."""
    log = LogWriter(directory, NODE, segment_bytes=400)
    try:
        log.open()
        for number, fact in enumerate(facts, start=1):
            log.append(fact)
            if number % 3 == 0:
                told.append(log.sync())
            elif number % 5 == 0:
                log.sync(wait=False)
        log.close()
    except LogWriteError as error:
        return str(error)
    finally:
        die(log)
    return ""


def test_a_full_disk_loses_nothing_acknowledged_wherever_it_fills(tmp_path: Path) -> None:
    """Every write and every fsync fails once; the message is the system's, and reopening works."""
    facts = a_history(24)
    for at in range(1, 1_000):
        directory, told = tmp_path / str(at), [0]
        with failing(at) as disk:
            problem = run(directory, facts, told)
        if not disk.failed:
            break
        if not problem:  # only the log's incarnation was not written, which is no reason not to serve
            assert list(read(directory, NODE)) == facts
            continue
        assert "No space left" in problem
        writer = LogWriter(directory, NODE, segment_bytes=400)
        writer.open()
        found = list(read(directory, NODE))
        assert found == facts[: len(found)]
        assert len(found) >= told[-1]
        for fact in facts[len(found) :]:
            writer.append(fact)
        writer.close()
        assert list(read(directory, NODE)) == facts
    assert at > 30, "the disk never failed"


def test_after_a_failed_write_the_same_writer_goes_on(tmp_path: Path) -> None:
    """Once there is room again the group that was refused is written, and no half of it was left."""
    facts, log = a_history(6), LogWriter(tmp_path, NODE)
    log.open()
    for fact in facts[:3]:
        log.append(fact)
    log.sync()
    for fact in facts[3:]:
        log.append(fact)
    with failing(1), pytest.raises(LogWriteError, match="seq 4 to 6 not accepted, all before is durable"):
        log.sync()
    assert (log.durable_seq, log.pending) == (3, 3)
    assert list(read(tmp_path, NODE)) == facts[:3]
    assert log.sync() == 6
    assert list(read(tmp_path, NODE)) == facts
    log.close()


def test_a_disk_with_little_room_takes_the_beginning_of_a_group(tmp_path: Path) -> None:
    """A batch of 4 MiB that did not fit was tried again whole for ever, though three were free."""
    log, real = LogWriter(tmp_path, NODE), os.write
    log.open()
    body, room = bytes(100_000), 1_000_000
    for seq in range(1, 41):
        log.append(Notification(node=NODE, seq=seq, published_at=seq, subject="t", body=body))

    def write(descriptor: int, data: memoryview) -> int:
        nonlocal room
        if not room:
            Disk._full()
        taken = min(len(data), room)
        room -= taken
        return real(descriptor, data[:taken])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(LogWriteError, match="to 40 not accepted, all before is"):
            log.sync()
        written = log.durable_seq
        assert 6 <= written <= 9
        assert log.pending == 40 - written
        with pytest.raises(LogWriteError, match=f"seq {written + 1} to 40 not accepted, all before is durable"):
            log.sync()
        assert len(list(read(tmp_path, NODE))) == written
        room = 10_000_000
        assert log.sync() == 40
    log.close()
    assert len(list(read(tmp_path, NODE))) == 40


def test_a_segment_is_ended_so_that_it_can_be_cut(tmp_path: Path) -> None:
    """A log whose only segment grows could not be cut by any bound."""
    facts = a_history(6)
    with LogWriter(tmp_path, NODE) as log:
        for fact in facts[:3]:
            log.append(fact)
        log.sync()
        assert not log.end_segment(1 << 20), "it is smaller"
        assert log.end_segment(1)
        assert not log.end_segment(1), "nothing is in it"
        for fact in facts[3:]:
            log.append(fact)
    assert [first for first, _ in layout.segments(tmp_path, NODE)] == [1, 4]
    assert list(read(tmp_path, NODE)) == facts


def test_after_a_failed_fsync_nothing_is_written_until_it_is_reopened(tmp_path: Path) -> None:
    """The system may have dropped what it could not write, and would call the next fsync a success."""
    facts, log = a_history(6), LogWriter(tmp_path, NODE)
    log.open()
    log.append(facts[0])
    with failing(2), pytest.raises(LogWriteError, match="reopen the log to go on"):
        log.sync()
    with pytest.raises(LogWriteError, match="an earlier fsync failed"):
        log.sync()
    with pytest.raises(LogWriteError, match="an earlier fsync failed"):
        log.append(facts[1])
    log.close()
    assert log.open().last_seq == 0
    log.append(facts[0])
    log.close()
    assert list(read(tmp_path, NODE)) == facts[:1]


def test_a_failed_fsync_takes_back_what_nobody_waited_for(tmp_path: Path) -> None:
    """Its pages may be dropped too, and nothing would tell; so the file ends where what is durable ends."""
    facts, log = a_history(6), LogWriter(tmp_path, NODE)
    log.open()
    log.append(facts[0])
    log.sync()
    log.append(facts[1])
    assert log.sync(wait=False) == 2
    log.append(facts[2])
    with failing(2), pytest.raises(LogWriteError, match="seq 2 to 3 not accepted, all before is durable"):
        log.sync()
    assert (log.durable_seq, log.written_seq, log.discard(), log.next_seq) == (1, 1, 2, 2)
    log.close()
    assert log.open().last_seq == 1


def test_a_failed_write_takes_back_nothing_that_was_written(tmp_path: Path) -> None:
    """A full disk is no reason to lose what the disk has room for already."""
    facts, log = a_history(6), LogWriter(tmp_path, NODE)
    log.open()
    log.append(facts[0])
    log.sync(wait=False)
    log.append(facts[1])
    with failing(1), pytest.raises(LogWriteError, match="seq 2 to 2 not accepted, all before is written, to 0 durable"):
        log.sync()
    assert log.discard() == 1
    log.append(facts[1])
    assert log.sync() == 2
    die(log)
    assert list(read(tmp_path, NODE)) == facts[:2]


def test_in_order_is_in_order() -> None:
    """The rig itself."""
    assert [fact.seq for fact in in_order(a_history(3), first=5)] == [5, 6, 7]
