"""Workers that see a log later than the driver, through real files: whole rows, or an error with a name, never fewer.

A view is made of what each folder of the log was at some moment: file systems of several machines promise no more.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

import numpy as np
import pytest
from late_views import History, LateView, lived
from stream_rig import StreamRig, forget

from whimbrel.log import layout
from whimbrel.log.errors import CorruptLogError
from whimbrel.log.export import export
from whimbrel.log.writer import LogWriter
from whimbrel.model.device import DeviceState
from whimbrel.model.facts import Fact, Reported
from whimbrel.model.notification import Notification
from whimbrel.pipeline.batch.job import BatchJob, NodeSpan
from whimbrel.pipeline.batch.stages import make_files
from whimbrel.pipeline.batch.tasks import Here
from whimbrel.pipeline.files.delta import read
from whimbrel.pipeline.files.part_rows import found_schema
from whimbrel.pipeline.files.schemas import SCHEMAS
from whimbrel.pipeline.files.snapshots import Missing
from whimbrel.pipeline.files.spans import SpanReader
from whimbrel.pipeline.files.visibility import NO_PATIENCE, Patience, UnseenNumbersError, first_unseen
from whimbrel.pipeline.plans import Plan, StreamPlan
from whimbrel.pipeline.spark.source import Span, WhimbrelSource, read_tail
from whimbrel.pipeline.stream.state.batch_record import LostLogError

NODE, FACTS, DELAYS = "n", 12, 1_000


def _fact(seq: int) -> Fact:
    return Reported(node=NODE, seq=seq, state=DeviceState(device="d", reported_at=seq, battery=0.5))


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, History]:
    """Return a log of segments, and one that was exported, cut and compacted as well."""
    facts = [_fact(seq) for seq in range(1, FACTS + 1)]
    return {
        exports: lived(tmp_path_factory.mktemp("history") / "log", facts, exports=exports) for exports in (False, True)
    }


def _rows(reader: SpanReader, spans: list[tuple[int, int]]) -> list[tuple[object, ...]]:
    """Return what a reader sees of the numbers of each table."""
    return [
        (table, *row)
        for first, last in spans
        for piece in reader.pieces(first, last, now=0)
        for table, rows in piece.tables.items()
        for row in zip(*(rows.column(name).to_pylist() for name in ("seq", "node")), strict=True)
    ]


def test_a_thousand_late_views_are_read_whole_or_not_at_all(tmp_path: Path, histories: dict[bool, History]) -> None:
    """A worker that sees less than the driver must not make a shorter span of it: those rows would be gone for good."""
    wanted = Counter(("reports", seq, NODE) for seq in range(1, FACTS + 1))
    found: Counter[str] = Counter()
    delays = 0
    for run in count():
        if delays >= DELAYS:
            break
        random, has_parquet = Random(run), run % 24 == 0  # which takes its time
        view = LateView(histories[has_parquet], tmp_path / ("exported" if has_parquet else "live"), random)
        reader = SpanReader(view.folder, NODE, most_facts=7 if run % 12 == 0 else 1_000, patience=view.patience())
        middle = random.randrange(FACTS) if run % 7 == 0 else 0
        try:
            assert Counter(_rows(reader, [(1, middle), (middle + 1, FACTS)])) == wanted, run
            found["whole"] += 1
        except (UnseenNumbersError, CorruptLogError) as error:
            found[type(error).__name__] += 1
        delays += view.delays
    assert found["whole"] > DELAYS // 4
    assert found["UnseenNumbersError"] > DELAYS // 50


# -- a stream and a batch run ------------------------------------------------------------------------------------------


def _published(log: Path, until: int, *, node: str = NODE) -> None:
    with LogWriter(log, node) as writer:
        while writer.next_seq <= until:
            seq = writer.next_seq
            writer.append(Notification(node=node, seq=seq, published_at=seq, subject="t", body=b"%d" % seq))


def _counted(out: Path) -> int:
    return sum(read(out, "popularity").column("publications").to_pylist())


@pytest.mark.parametrize("is_first", [True, False], ids=["first batch", "later batch"])
def test_a_stream_commits_no_hole(tmp_path: Path, *, is_first: bool) -> None:
    """Half of the publications were gone, without an error, where a worker saw half of the segment."""
    log, here = tmp_path / "log", tmp_path / "here"
    plan = StreamPlan(tables=("popularity",))
    _published(log, 20)
    stream = StreamRig(log=log, out=tmp_path / "out", plan=plan)
    if not is_first:
        stream.take({NODE: 10})
        forget()
    shutil.copytree(log, here)
    _published(log, 40)
    stream = StreamRig(log=log, out=tmp_path / "out", plan=plan)
    stream.job = replace(stream.job, log=str(here))
    with pytest.raises(UnseenNumbersError, match=rf"numbers 21 to 40 are in the log .* and not in {here}"):
        stream.take({NODE: 40})
    assert _counted(tmp_path / "out") == (0 if is_first else 10)
    late = Patience(seconds=1, sleep=lambda _: shutil.copytree(log, here, dirs_exist_ok=True))
    stream.job = replace(stream.job, patience=late)
    stream.take({NODE: 40})
    assert _counted(tmp_path / "out") == 40


def test_a_worker_that_sees_a_later_beginning_takes_nothing_for_cut(tmp_path: Path) -> None:
    """It would tell of numbers that are not there any more, and leave them out."""
    log, here = tmp_path / "log", tmp_path / "here"
    _published(log, 20)
    export(log, NODE, closed_only=False)
    _published(log, 40)
    export(log, NODE, closed_only=False)
    shutil.copytree(log, here)
    (first, _) = layout.parts(here, "publications")
    first.path.unlink()
    stream = StreamRig(log=log, out=tmp_path / "out", plan=StreamPlan(tables=("popularity", "dead_letters")))
    stream.job = replace(stream.job, log=str(here))
    with pytest.raises((UnseenNumbersError, LostLogError)):
        stream.take({NODE: 40})
    job = BatchJob(
        log=str(here),
        out=str(tmp_path),
        folder="",
        scratch=str(tmp_path),
        tables=("matches", "deliveries", "dead_letters"),
        plan=Plan(assume_receipts=False),
        now=0,
        patience=NO_PATIENCE,
    )
    for folds in (True, False):
        some = job if folds else replace(job, tables=("dead_letters",))
        with pytest.raises(UnseenNumbersError, match="and start again"):
            make_files(Here(), some, [NodeSpan(NODE, 0, 40)])
    stream.job = replace(stream.job, log=str(log))
    stream.take({NODE: 40})
    assert (_counted(tmp_path / "out"), read(tmp_path / "out", "dead_letters").num_rows) == (40, 0)


def test_a_cached_reader_is_of_one_folder(tmp_path: Path) -> None:
    """A worker remembers where it was in a file; of another folder's file that says nothing."""
    for name, body in (("one", b"1"), ("two", b"22")):
        with LogWriter(tmp_path / name, NODE) as writer:
            for seq in range(1, 21):
                writer.append(Notification(node=NODE, seq=seq, published_at=seq, subject="t", body=body * seq))
    (tmp_path / "log").symlink_to(tmp_path / "one")
    reader = SpanReader(tmp_path / "log", NODE, patience=NO_PATIENCE)
    (piece,) = reader.pieces(1, 10, now=0)
    (tmp_path / "log").unlink()
    (tmp_path / "log").symlink_to(tmp_path / "two")
    (piece,) = reader.pieces(11, 20, now=0)
    assert piece.table("publications").column("body").to_pylist() == [b"22" * seq for seq in range(11, 21)]


@pytest.mark.parametrize("is_exported", [False, True])
def test_a_tail_is_read_whole(tmp_path: Path, *, is_exported: bool) -> None:
    """The format ``whimbrel`` and the tables that no fold makes read the same log."""
    log, target = tmp_path / "log", found_schema("reports")
    for _ in range(2):
        with LogWriter(log, NODE) as writer:
            for _ in range(6):
                writer.append(_fact(writer.next_seq))
    if is_exported:
        export(log, NODE, closed_only=False)
    late = Patience(seconds=1, sleep=lambda _: _published(log, 14))

    def numbers(last: int, patience: Patience) -> list[int]:
        batches = read_tail(log, "reports", Span(NODE, 3, last), target, patience=patience)
        return [seq for batch in batches for seq in batch.column("seq").to_pylist()]

    assert numbers(12, NO_PATIENCE) == list(range(3, 13))
    with pytest.raises(UnseenNumbersError, match="numbers 13 to 14"):
        numbers(14, NO_PATIENCE)
    assert numbers(14, late) == list(range(3, 13))
    (stream,) = [WhimbrelSource({"path": str(log)}).streamReader(SCHEMAS["publications"])]
    with pytest.raises(UnseenNumbersError, match="numbers 15 to 16"):
        stream.partitions({NODE: 12}, {NODE: 16})


@pytest.mark.parametrize(
    ("first", "seen", "missing", "spare", "unseen"),
    [
        (0, [1, 2, 3], (), 0, None),
        (1, [1, 3], (), 0, 2),
        (1, [1, 3], (), 1, None),
        (1, [3], ((1, 2),), 0, None),
        (1, [3], ((0, 1),), 0, 2),
        (2, [1, 2, 4], ((9, 12),), 0, 3),
        (1, [1, 1, 3], (), 0, 2),
    ],
)
def test_numbers_are_dense(
    first: int, seen: list[int], missing: tuple[tuple[int, int], ...], spare: int, unseen: int | None
) -> None:
    """Each from the first to the last, but for those that are known to be gone; twice is not two."""
    known = [Missing(NODE, *each) for each in missing]
    assert first_unseen(first, 3, [np.array(seen)], missing=known, spare=spare) == unseen
