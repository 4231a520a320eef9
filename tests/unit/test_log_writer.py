"""The writer and its readers: order, groups, segments, and one writer at a time."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from ordered import NODE, a_history, stamped

from whimbrel.errors import InvalidValueError
from whimbrel.log import layout
from whimbrel.log.errors import (
    CorruptLogError,
    LogError,
    LogLockedError,
    LogWriteError,
    MissingRecordsError,
    NewerLogError,
    NotALogError,
)
from whimbrel.log.files import tighten
from whimbrel.log.reader import LogReader, proven_seq, read, read_rows
from whimbrel.log.records import publication_body
from whimbrel.log.segments import NEVER, read_header
from whimbrel.log.writer import LogWriter, Recovery
from whimbrel.model.facts import Fact
from whimbrel.model.notification import Notification
from whimbrel.model.rows import row_of


@contextmanager
def counted_syncs() -> Iterator[list[int]]:
    """Note whatever is synced."""
    calls: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", calls.append)
        yield calls


def write(directory: Path, facts: list[Fact], **how: int) -> None:
    """Write *facts* as groups of five."""
    with LogWriter(directory, NODE, **how) as log:
        for fact in facts:
            log.append(fact)
            if log.pending == 5:
                log.sync()


def test_a_new_log_begins_with_seq_1(tmp_path: Path) -> None:
    """0 is what counts before it, and means nothing yet."""
    log = LogWriter(tmp_path / "new" / "log", NODE)
    assert log.open() == Recovery(last_seq=0, records=0, cut_bytes=0)
    assert (log.next_seq, log.durable_seq, log.pending, log.last_at) == (1, 0, 0, NEVER)
    assert log.sync() == 0
    log.close()
    assert json.loads((tmp_path / "new" / "log" / "whimbrel-log.json").read_bytes()) == {"format": 1}


def test_what_is_appended_is_durable_only_after_sync(tmp_path: Path) -> None:
    """Whoever is told before that may be told a lie."""
    facts, log = a_history(3), LogWriter(tmp_path, NODE)
    log.open()
    for fact in facts:
        log.append(fact)
    assert (log.next_seq, log.durable_seq, log.pending) == (4, 0, 3)
    assert list(read(tmp_path, NODE)) == []
    assert log.sync() == 3
    assert list(read(tmp_path, NODE)) == facts
    log.close()


def test_the_log_goes_on_where_it_was(tmp_path: Path) -> None:
    """A restart gives no number twice."""
    facts = a_history(20)
    write(tmp_path, facts[:7])
    log = LogWriter(tmp_path, NODE)
    assert log.open() == Recovery(last_seq=7, records=7, cut_bytes=0)
    log.close()
    write(tmp_path, facts[7:])
    assert list(read(tmp_path, NODE)) == facts


def test_seqs_follow_and_times_do_not_go_back(tmp_path: Path) -> None:
    """A log with a gap, or with two orders, could not be replayed."""
    facts = a_history(5)
    write(tmp_path, facts[:3])
    with LogWriter(tmp_path, NODE) as log:
        assert log.last_at == row_of(facts[2])[1].get("published_at", log.last_at)
        with pytest.raises(InvalidValueError, match=r"n1:5.*n1:4, the next"):
            log.append(facts[4])
        with pytest.raises(InvalidValueError, match="the next of the log"):
            log.append(Notification(node="other", seq=4, published_at=log.last_at))
        with pytest.raises(InvalidValueError, match="time does not go back"):
            log.append(stamped(facts[3], 4, log.last_at - 1))
        with pytest.raises(InvalidValueError, match="in the years 1 to 9999"):
            log.append(stamped(facts[3], 4, 2**62))
        log.append(stamped(facts[3], 4, log.last_at))


def test_full_segments_are_closed_and_named_by_their_first_seq(tmp_path: Path) -> None:
    """Exports and retention work with whole files."""
    facts = a_history(40)
    write(tmp_path, facts, segment_bytes=500)
    found = layout.segments(tmp_path, NODE)
    assert len(found) > 3
    assert found[0][0] == 1
    for (_, one), (first, other) in pairwise(found):
        assert one.stat().st_size >= 500
        with other.open("rb") as stream:
            header = read_header(stream, other)
        assert (header.node, header.first) == (NODE, first)
        assert header.last_at == next(
            value for value in row_of(facts[first - 2])[1].values() if value == header.last_at
        )
    assert list(read(tmp_path, NODE)) == facts
    assert list(read(tmp_path, NODE, first=17, last=23)) == facts[16:23]
    assert list(read_rows(tmp_path, NODE, first=39)) == [row_of(fact) for fact in facts[38:]]


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """Two would give the same number twice; the second is told why not."""
    with LogWriter(tmp_path, NODE) as log:
        with pytest.raises(LogLockedError, match="another process is writing this log"):
            LogWriter(tmp_path, NODE).open()
        with pytest.raises(LogError, match="open already"):
            log.open()
        LogWriter(tmp_path, "n2").open()  # another node is another log


def test_a_closed_writer_refuses(tmp_path: Path) -> None:
    """Silence would be a loss."""
    log, fact = LogWriter(tmp_path, NODE), a_history(1)[0]
    with pytest.raises(LogWriteError, match="not open"):
        log.append(fact)
    log.open()
    log.close()
    with pytest.raises(LogWriteError, match="not open"):
        log.sync()


def _append_twice(log: LogWriter, fact: Fact) -> None:
    log.append(fact)
    log.append(fact)


def test_an_error_in_the_block_still_keeps_what_was_appended(tmp_path: Path) -> None:
    """A program that stumbles later has not un-appended anything."""
    fact = a_history(1)[0]
    with pytest.raises(InvalidValueError), LogWriter(tmp_path, NODE) as log:
        _append_twice(log, fact)
    assert len(list(read(tmp_path, NODE))) == 1


def test_one_thread_appends_while_another_syncs(tmp_path: Path) -> None:
    """A broker's event loop must not wait for the disk."""
    facts, log = a_history(2_000), LogWriter(tmp_path, NODE)
    log.open()
    is_done = threading.Event()

    def keep_syncing() -> None:
        while not is_done.is_set():
            log.sync()

    syncer = threading.Thread(target=keep_syncing, daemon=True)
    syncer.start()
    for fact in facts:
        log.append(fact)
    is_done.set()
    syncer.join()
    log.close()
    assert list(read(tmp_path, NODE)) == facts


def test_a_reader_goes_on_as_the_node_writes(tmp_path: Path) -> None:
    """Across segments too, and each fact once."""
    facts, seen = a_history(60), []
    with LogWriter(tmp_path, NODE, segment_bytes=400) as log:
        reader = LogReader(tmp_path, NODE, first=4)
        for fact in facts:
            log.append(fact)
            if fact.seq % 7 == 0:
                log.sync()
                seen += list(reader.facts())
        log.sync()
        seen += list(reader.facts())
    assert seen == facts[3:]


def test_a_reader_left_in_the_middle_goes_on_there(tmp_path: Path) -> None:
    """Whoever takes ten of many finds the eleventh next time."""
    facts = a_history(30)
    write(tmp_path, facts, segment_bytes=400)
    reader = LogReader(tmp_path, NODE)
    one = [fact for fact, _ in zip(reader.facts(), range(10), strict=False)]
    assert len(one) in {10, 11}
    assert one + list(reader.facts()) in (facts, facts[:10] + facts[11:])


def test_only_what_is_marked_is_proven(tmp_path: Path) -> None:
    """The group that was written last may still be taken back by a crash."""
    facts, log = a_history(6), LogWriter(tmp_path, NODE)
    log.open()
    proven = []
    for fact in facts:
        log.append(fact)
        log.sync()
        proven.append(proven_seq(tmp_path, NODE))
    log.close()
    assert proven == [0, 1, 2, 3, 4, 5]
    assert proven_seq(tmp_path, NODE) == 6


def test_what_is_not_waited_for_is_written_and_not_proven(tmp_path: Path) -> None:
    """The end of the process cannot take it back; a mark would say that nothing can."""
    facts, log = a_history(6), LogWriter(tmp_path, NODE)
    log.open()
    seen = []
    for fact, wait in zip(facts, [False, False, True, False, False, True], strict=True):
        log.append(fact)
        seen.append((log.sync(wait=wait), log.durable_seq, log.written_seq, proven_seq(tmp_path, NODE)))
        assert list(read(tmp_path, NODE)) == facts[: fact.seq]
    assert seen == [(1, 0, 1, 0), (2, 0, 2, 0), (3, 3, 3, 0), (4, 3, 4, 3), (5, 3, 5, 3), (6, 6, 6, 3)]
    log.close()
    assert proven_seq(tmp_path, NODE) == 6


def test_a_node_that_settles_lets_readers_see_everything(tmp_path: Path) -> None:
    """Also what nobody waits for, and without another group to come; settling twice writes nothing twice."""
    facts, log = a_history(4), LogWriter(tmp_path, NODE)
    log.open()
    for fact in facts[:2]:
        log.append(fact)
        log.sync(wait=False)
    assert not log.is_settled
    assert (log.settle(), proven_seq(tmp_path, NODE), log.is_settled) == (2, 2, True)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*.seg*"))
    assert log.settle() == 2
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.seg*")) == size
    for fact in facts[2:]:
        log.append(fact)
    assert not log.is_settled
    assert (log.settle(), proven_seq(tmp_path, NODE)) == (4, 4)
    log.close()
    assert list(read(tmp_path, NODE)) == facts


def test_a_sync_that_waits_makes_durable_what_is_written_already(tmp_path: Path) -> None:
    """Once a second, say, for all that came since; with nothing new there is nothing to wait for."""
    fact, log = a_history(1)[0], LogWriter(tmp_path, NODE)
    log.open()
    log.append(fact)
    assert log.sync(wait=False) == 1
    with counted_syncs() as calls:
        assert [log.sync(), log.sync()] == [1, 1]
        assert len(calls) == 1
    assert (log.durable_seq, log.pending) == (1, 0)
    log.close()


def test_a_full_segment_is_durable_before_the_next_begins(tmp_path: Path) -> None:
    """A segment that another follows counts as proven, so it must be."""
    facts = a_history(40)
    with LogWriter(tmp_path, NODE, segment_bytes=500) as log:
        for fact in facts:
            log.append(fact)
            log.sync(wait=False)
            assert log.durable_seq == layout.segments(tmp_path, NODE)[-1][0] - 1
    assert len(layout.segments(tmp_path, NODE)) > 3
    assert list(read(tmp_path, NODE)) == facts


def test_discarded_facts_give_their_numbers_back(tmp_path: Path) -> None:
    """Whoever was told that they are not accepted may send them again."""
    facts, log = a_history(6), LogWriter(tmp_path, NODE)
    log.open()
    log.append(facts[0])
    log.sync()
    at = log.last_at
    for fact in facts[1:4]:
        log.append(fact)
    assert (log.discard(), log.discard()) == (3, 0)
    assert (log.next_seq, log.last_at, log.pending) == (2, at, 0)
    log.append(facts[1])
    log.close()
    assert list(read(tmp_path, NODE)) == facts[:2]


def test_discard_waits_for_a_running_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What that sync writes is accepted; only what came after it is forgotten."""
    facts, log = a_history(2), LogWriter(tmp_path, NODE)
    log.open()
    log.append(facts[0])
    is_writing, may_end = threading.Event(), threading.Event()

    def slow(_descriptor: int) -> None:
        is_writing.set()
        assert may_end.wait(10)

    monkeypatch.setattr(os, "fsync", slow)
    syncer = threading.Thread(target=log.sync)
    syncer.start()
    assert is_writing.wait(10)
    log.append(facts[1])
    threading.Timer(0, may_end.set).start()
    assert log.discard() == 1
    syncer.join()
    assert (log.durable_seq, log.next_seq) == (1, 2)


def test_a_body_is_appended_as_it_is(tmp_path: Path) -> None:
    """A broker makes records itself; the log still minds their times and its own state."""
    log = LogWriter(tmp_path, NODE)
    with pytest.raises(LogWriteError, match="not open"):
        log.append_body(publication_body(1, 5, b"d", b"a/b", b""), 5)
    log.open()
    assert log.append_body(publication_body(log.next_seq, 5, b"d", b"a/b", b""), 5) == 1
    with pytest.raises(InvalidValueError, match="time does not go back"):
        log.append_body(publication_body(log.next_seq, 4, b"d", b"a/b", b""), 4)
    assert (log.next_seq, log.last_at) == (2, 5)
    log.close()
    assert log.open().last_seq == 1
    assert log.last_at == 5
    wanted = Notification(node=NODE, seq=1, published_at=5, publisher="d", subject="a/b")
    assert list(read(tmp_path, NODE)) == [wanted]


def test_a_fact_that_cbor_cannot_hold_is_refused_before_it_has_a_number(tmp_path: Path) -> None:
    """A record that cannot be read back must never be written."""
    fact = a_history(1)[0]
    with LogWriter(tmp_path, NODE) as log:
        bad = Notification(node=NODE, seq=1, published_at=5)
        object.__setattr__(bad, "subject", "\ud800")
        with pytest.raises(InvalidValueError, match="what CBOR can hold"):
            log.append(bad)
        log.append(fact)
    assert list(read(tmp_path, NODE)) == [fact]


# -- the directory -----------------------------------------------------------------------------------------------------


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """A log that we only half understand is not touched."""
    (tmp_path / "whimbrel-log.json").write_text('{"format": 2, "more": true}')
    expected = r"written by a newer Whimbrel \(format 2\); this one reads up to 1"
    with pytest.raises(NewerLogError, match=expected):
        LogWriter(tmp_path, NODE).open()
    with pytest.raises(NewerLogError, match=expected):
        read(tmp_path, NODE)


@pytest.mark.parametrize("text", ["", "[]", '{"format": "1"}', '{"format": -1}', "\x00"])
def test_a_damaged_format_file_is_told(tmp_path: Path, text: str) -> None:
    """It is the first thing read."""
    (tmp_path / "whimbrel-log.json").write_text(text)
    with pytest.raises(CorruptLogError):
        layout.check_format(tmp_path)


def test_a_folder_with_other_things_is_no_log(tmp_path: Path) -> None:
    """Nobody wants a log in their home directory by mistake."""
    (tmp_path / "letters.txt").write_text("")
    with pytest.raises(NotALogError, match="not empty"):
        LogWriter(tmp_path, NODE).open()
    with pytest.raises(NotALogError, match=r"whimbrel-log\.json is missing"):
        read(tmp_path, NODE)


def test_a_segment_of_another_node_is_told(tmp_path: Path) -> None:
    """A file that was copied to the wrong place would give wrong names to facts."""
    write(tmp_path, a_history(3))
    (_, path) = layout.segments(tmp_path, NODE)[0]
    target = layout.segment_path(tmp_path, "n2", 1)
    target.parent.mkdir()
    target.write_bytes(path.read_bytes())
    with pytest.raises(CorruptLogError, match="its header says n1:1"):
        list(read(tmp_path, "n2"))
    with pytest.raises(CorruptLogError, match="its header says n1:1"):
        LogWriter(tmp_path, "n2").open()


def test_seqs_are_not_given_again_where_segments_were_removed(tmp_path: Path) -> None:
    """Parquet has them already."""
    write(tmp_path, a_history(3))
    layout.set_exported_seq(tmp_path, NODE, 3)
    layout.segments(tmp_path, NODE)[0][1].unlink()
    with LogWriter(tmp_path, NODE) as log:
        assert log.next_seq == 4


def fact(seq: int) -> Notification:
    """Return the publication of a number."""
    return Notification(node=NODE, seq=seq, published_at=seq, subject="a")


def _written(path: Path, count: int) -> None:
    with LogWriter(path, NODE, segment_bytes=1) as writer:
        for seq in range(1, count + 1):
            writer.append(fact(seq))
            writer.sync()


def test_a_log_that_ends_before_its_export_is_not_opened(tmp_path: Path) -> None:
    """The numbers after its end are in Parquet already, under other facts."""
    _written(tmp_path, 5)
    layout.set_exported_seq(tmp_path, NODE, 9)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.seg")}
    with pytest.raises(MissingRecordsError, match=r"records 6 to 9 are missing.*ends with 5.*--accept-loss"):
        LogWriter(tmp_path, NODE).open()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.seg")} == before


def test_whoever_accepts_the_loss_says_how_to_go_on(tmp_path: Path) -> None:
    """Nothing is written before that; afterwards it is a log that was cut, and what there was is set aside."""
    _written(tmp_path, 5)
    writer = LogWriter(tmp_path, NODE)
    assert writer.open(given_by=lambda: (9, "a view"), accepts_loss=True).missing_to == 9
    with pytest.raises(LogWriteError, match="records are missing"):
        writer.append(fact(6))
    assert [each.seq for each in read(tmp_path, NODE)] == [1, 2, 3, 4, 5]
    writer.begin_at(10)
    writer.append(fact(10))
    writer.close()
    assert [each.seq for each in read(tmp_path, NODE)] == [10]
    assert len(list(tmp_path.rglob(".lost-1/*.seg"))) == 5
    LogWriter(tmp_path, NODE).open(given_by=lambda: (9, "a view"))


def test_a_torn_tail_that_somebody_proves_durable_is_not_cut(tmp_path: Path) -> None:
    """Damage after the last mark looks like a torn tail, unless a view was written of it."""
    with LogWriter(tmp_path, NODE) as writer:
        for seq in range(1, 4):
            writer.append(fact(seq))
    ((_, path),) = layout.segments(tmp_path, NODE)
    path.write_bytes(path.read_bytes()[:-40])
    torn = path.read_bytes()
    with pytest.raises(MissingRecordsError, match="a view proves that there were 3"):
        LogWriter(tmp_path, NODE).open(given_by=lambda: (3, "a view"))
    assert path.read_bytes() == torn


def test_what_was_open_to_others_is_tightened_and_links_are_left_alone(tmp_path: Path) -> None:
    """A link may lead to what is none of ours."""
    (tmp_path / "data" / "log").mkdir(parents=True)
    for path in (tmp_path / "data" / "log" / "file", tmp_path / "elsewhere"):
        path.write_text("x")
        path.chmod(0o644)
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    assert tighten(tmp_path / "data") == 3
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "data", tmp_path / "data" / "log" / "file")]
    assert (modes, (tmp_path / "elsewhere").stat().st_mode & 0o777) == ([0o700, 0o600], 0o644)
    assert tighten(tmp_path / "data") == 0


def test_a_part_within_another_is_superseded(tmp_path: Path) -> None:
    """That is how merging and making again never show a row twice."""
    layout.create(tmp_path)
    for node, first, last in [("n1", 1, 5), ("n1", 6, 9), ("n1", 1, 9), ("n1", 10, 12), ("n2", 2, 3)]:
        path = layout.part_path(tmp_path, "reports", layout.date_of(0), node, first, last)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.with_name(f"_{path.name}.new").touch()
    found = [(part.node, part.first, part.last) for part in layout.parts(tmp_path, "reports")]
    assert found == [("n1", 1, 9), ("n1", 10, 12), ("n2", 2, 3)]
    assert len(layout.all_parts(tmp_path, "reports")) == 5
    assert layout.tables_present(tmp_path) == ["reports"]
    assert layout.nodes(tmp_path) == ["n1", "n2"]


def test_a_segment_ends_by_age_also_after_a_restart(tmp_path: Path) -> None:
    """A log that grows slowly is closed to the day, so that it can be cut to the day."""
    day, facts = 86_400_000_000, a_history(8)
    for number, fact in enumerate(facts):  # every twelve hours, each by another process
        with LogWriter(tmp_path, NODE, segment_us=day) as log:
            log.append(stamped(fact, fact.seq, number * day // 2))
    assert [first for first, _ in layout.segments(tmp_path, NODE)] == [1, 3, 5, 7]
    assert len(list(read(tmp_path, NODE))) == 8
