"""The stream against the batch job and one process: however batches are cut or interrupted, the tables are the same."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from random_logs import placed_log, random_log
from single_process import Delivery, Match, SingleProcess
from stream_rig import StreamRig, forget

from whimbrel.hold.retention import Retention
from whimbrel.log import layout
from whimbrel.log.export import export
from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import Fact, Outcome
from whimbrel.model.tables import TABLES
from whimbrel.pipeline import TABLES_MADE
from whimbrel.pipeline.batch.jobs import run
from whimbrel.pipeline.files.delta import TIME_COLUMNS, DeltaOutput, read
from whimbrel.pipeline.plans import Plan, StreamPlan
from whimbrel.pipeline.stream import commits
from whimbrel.pipeline.stream.commits import BatchCommits, TableCommits
from whimbrel.pipeline.stream.state.batch_record import BatchRecord
from whimbrel.pipeline.stream.state.blob_store import BlobStore
from whimbrel.pipeline.stream.stream import LostLogError, LostStateError, Stream
from whimbrel.pipeline.unit import matchers

pytestmark = pytest.mark.usefixtures("interpreted")

NODES, FACTS, CUTS = 3, 120, 3
RETENTION = Retention(ttl_us=30, max_held=3)
WINDOW_US = 16
OPTIONS: dict[str, Any] = {"retention": RETENTION, "window_us": WINDOW_US, "nodes": 7, "slots_per_node": 3}


@dataclass(frozen=True)
class Case:
    """A log on disk, its facts, and the tables that the batch job makes of it."""

    log: Path
    facts: dict[str, list[Fact]]
    tables: dict[str, list[tuple[Any, ...]]]
    plan: StreamPlan


@pytest.fixture(scope="module")
def cases(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Case]:
    """Return what makes a case, once: pytest would make it again whenever tests of another came between."""
    return cache(lambda has_receipts: _case(spark, tmp_path_factory.mktemp("case"), has_receipts=has_receipts))


@pytest.fixture(params=[False, True], ids=["made", "of-a-broker"])
def case(request: pytest.FixtureRequest, cases: Callable[[bool], Case]) -> Case:
    """Return a log without receipts, where what is handed over counts, and one with."""
    return cases(bool(request.param))


def _case(spark: SparkSession, folder: Path, *, has_receipts: bool) -> Case:
    random = Random(5 + has_receipts)
    facts = _logs(random, has_receipts=has_receipts)
    _write(folder / "log", facts, random)
    tables: dict[str, list[tuple[Any, ...]]] = {}
    if has_receipts:  # for the other, one process says enough: the batch job takes its time
        made = run(spark, log=folder / "log", out=folder / "batch", plan=Plan(**OPTIONS))
        tables = {table: _rows(folder / "batch", table) for table in made}
        assert all(tables[table] for table in TABLES_MADE if table != "dead_letters")
    return Case(folder / "log", facts, tables, StreamPlan(**OPTIONS, assume_receipts=not has_receipts))


def _rows(out: Path, table: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table in some order, lists in them too; when a dead letter was found is left out."""
    rows = read(out, table)
    columns = [rows.column(name).to_pylist() for name in rows.schema.names if name != "found_at"]
    return sorted((_frozen(row) for row in zip(*columns, strict=True)), key=repr)


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted((key, _frozen(each)) for key, each in value.items()))
    if isinstance(value, list):
        return tuple(sorted(map(_frozen, value), key=repr))
    return tuple(map(_frozen, value)) if isinstance(value, tuple) else value


def _check(out: Path, case: Case) -> None:
    """Every table is that of the batch job, row by row, and the two that one process makes are also that."""
    for table, wanted in case.tables.items():
        assert _rows(out, table) == _told(table, wanted), table
    single = SingleProcess(retention=RETENTION, assume_receipts=bool(case.plan.assume_receipts))
    expected = single.run(fact for facts in case.facts.values() for fact in facts)
    for found, right in ((_matches(out), expected.matches), (_deliveries(out), expected.deliveries)):
        assert len(found) == len(set(found))
        assert set(found) == set(right)


def _logs(random: Random, *, has_receipts: bool, make: Callable[..., list[Fact]] = placed_log) -> dict[str, list[Fact]]:
    names = [f"node{number}" for number in range(NODES)]
    return {name: make(random, name, facts=FACTS, has_receipts=has_receipts) for name in names}


def _told(table: str, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the rows of a batch job that a stream has, too: it tells of a contact once that has ended."""
    ended = TABLES["contacts"].schema.names.index("ended_at")
    return [row for row in rows if table != "contacts" or row[ended] is not None]


def _write(folder: Path, logs: dict[str, list[Fact]], random: Random) -> None:
    """Write each node's log, some of it exported already."""
    for node, facts in logs.items():
        log = LogWriter(folder, node)
        log.open()
        split = random.randrange(len(facts))
        for number, fact in enumerate(facts):
            if number == split:
                log.settle()
                exported = export(folder, node, closed_only=False)
                assert exported.last_seq == fact.seq - 1
            log.append(fact)
        log.sync()
        log.close()


def _cuts(random: Random, logs: dict[str, list[Fact]]) -> Iterator[dict[str, int]]:
    """Yield where batches end, anywhere; not every node has something in every batch, and the last has the rest."""
    ends = {node: facts[-1].seq for node, facts in logs.items()}
    at = dict.fromkeys(logs, -1)
    for _ in range(CUTS):
        at = {node: random.randrange(at[node], end + 1) for node, end in ends.items()}
        yield at
    yield ends


def _matches(out: Path) -> list[Match]:
    return [
        Match(
            row["notification_node"],
            row["notification_seq"],
            row["session"],
            (row["subject_filter"], row["name"]),
            row["interest_seq"],
        )
        for row in read(out, "matches").to_pylist()
    ]


def _us(moment: Any) -> int | None:
    return None if moment is None else pa.scalar(moment, pa.timestamp("us", "UTC")).cast(pa.int64()).as_py()


def _deliveries(out: Path) -> list[Delivery]:
    return [
        Delivery(
            node=row["notification_node"],
            seq=row["notification_seq"],
            published_at=_us(row["published_at"]) or 0,
            subject=row["subject"],
            deadline_at=_us(row["deadline_at"]),
            session=row["session"],
            device=row["device"],
            subscriptions=frozenset((each["subject_filter"], each["name"]) for each in row["subscriptions"]),
            outcome=Outcome(row["outcome"]),
            body_hash=row["body_hash"],
            decided_at=_us(row["decided_at"]) or 0,
            lapses_at=_us(row["lapses_at"]),
            via=row["via"],
            difference=row["difference"],
        )
        for row in read(out, "deliveries").to_pylist()
    ]


@pytest.mark.parametrize(("seed", "small"), [(1, 0)], ids=["in layers"])
def test_batches_may_be_cut_anywhere(
    tmp_path: Path, case: Case, monkeypatch: pytest.MonkeyPatch, seed: int, small: int
) -> None:
    """Batch is stream: subscriptions, what is held, windows and links are carried over every cut, and over restarts."""
    monkeypatch.setattr(matchers, "SMALL", small)
    random = Random(seed)
    stream = StreamRig(log=case.log, out=tmp_path, plan=case.plan)
    for ends in _cuts(random, case.facts):
        stream.take(ends)
        if random.random() < 0.5:
            forget()
            stream = StreamRig(log=case.log, out=tmp_path, plan=case.plan)
    _check(tmp_path, case)


class _KilledError(Exception):
    """Stands for the end of the process, at this place."""


def _killing(method: Callable[..., Any], random: Random) -> Callable[..., Any]:
    """Return *method*, which at times ends everything before or after it has done its work."""

    def killed(*arguments: Any, **options: Any) -> Any:
        chance = random.random()
        if chance < 0.07:
            raise _KilledError
        result = method(*arguments, **options)
        if chance > 0.93:
            raise _KilledError
        return result

    return killed


@pytest.mark.parametrize("case", [True], ids=["of-a-broker"], indirect=True)
def test_a_stream_that_is_interrupted_goes_on_as_if_it_had_not_been(
    tmp_path: Path, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two steps of a batch: nothing is there twice, nothing is missing; also in pieces."""
    random, plan = Random(9), replace(case.plan, facts_per_batch=90)
    steps = ((DeltaOutput, "_commit"), (BlobStore, "commit"), (BatchRecord, "put"), (TableCommits, "tidy"))
    for owner, name in steps:
        monkeypatch.setattr(owner, name, _killing(getattr(owner, name), random))
    kills = batches = 0
    middles = {node: facts[len(facts) // 2].seq for node, facts in case.facts.items()}
    ends = {node: facts[-1].seq for node, facts in case.facts.items()}
    for last in (middles, ends):
        for _ in range(60):
            if random.random() < 0.5:  # a worker may outlive the driver
                forget()
            stream = StreamRig(
                log=case.log, out=tmp_path, plan=plan, piece_bytes=3_000, piece_facts=17, file_bytes=4_000
            )
            try:
                stream.take(last)
                batches = stream.batch + 1
                break
            except _KilledError:
                kills += 1
        else:
            pytest.fail("it never came through")
    assert kills
    assert batches > len((middles, ends))
    monkeypatch.undo()
    _check(tmp_path, case)


def test_the_query_reads_what_there_is_and_goes_on_later(spark: SparkSession, tmp_path: Path) -> None:
    """A second start reads only what came meanwhile, in bounded batches; one that follows the log waits for it.

    Its workers see the log later than the driver, as on a file system of several machines.
    """
    random = Random(3)
    made = _logs(random, has_receipts=True, make=random_log)  # the same number of facts, of which more are heard
    logs = {name: facts for name, facts in made.items() if name in {"node1", "node2"}}
    halves = {node: facts[: len(facts) // 2] for node, facts in logs.items()}
    _write(tmp_path / "log", halves, random)
    plan = StreamPlan(**OPTIONS, facts_per_batch=50)
    stream = Stream(spark, log=tmp_path / "log", out=tmp_path / "out", plan=plan)
    stream.start()
    while not stream.wait(1):
        pass
    assert stream.last is not None
    assert stream.last.applied == {node: facts[-1].seq for node, facts in halves.items()}
    stream.close()
    shutil.copytree(tmp_path / "out", tmp_path / "copied")
    copied = Stream(spark, log=tmp_path / "log", out=tmp_path / "copied", plan=plan)
    assert copied.checkpoint == (tmp_path / "copied" / "_stream" / "checkpoint").as_uri()  # and not the original's
    copied.close()

    stream = Stream(spark, log=tmp_path / "log", out=tmp_path / "out", plan=plan)
    _follow(tmp_path / "log", tmp_path / "seen late")
    stream.batches.job = replace(stream.job, log=str(tmp_path / "seen late"))
    is_over = Event()
    ends = {node: facts[-1].seq for node, facts in logs.items()}
    stream.listeners.append(lambda taken: is_over.set() if taken.applied == ends else None)
    stream.start(every_s=0.1)
    _write(tmp_path / "log", {node: facts[len(facts) // 2 :] for node, facts in logs.items()}, random)
    while not is_over.wait(0.5):
        assert not stream.wait(0)
        _follow(tmp_path / "log", tmp_path / "seen late")
    stream.stop()
    assert not stream.is_active
    stream.close()
    wanted = SingleProcess(retention=RETENTION, assume_receipts=False).run(
        fact for each in logs.values() for fact in each
    )
    for found, right in (
        (_matches(tmp_path / "out"), wanted.matches),
        (_deliveries(tmp_path / "out"), wanted.deliveries),
    ):
        assert Counter(found) == Counter(right)
    assert len(wanted.deliveries) > 100


def _follow(log: Path, copy: Path) -> None:
    """Let a copy of a log have what the log has, file by file."""

    def copied(source: str, target: str) -> None:
        beside = Path(target).with_name(f".{Path(target).name}.copied")
        beside.write_bytes(Path(source).read_bytes())
        beside.replace(target)

    shutil.copytree(log, copy, dirs_exist_ok=True, copy_function=copied)


@pytest.mark.parametrize("case", [True], ids=["of-a-broker"], indirect=True)
def test_what_is_old_is_removed_and_nothing_else(tmp_path: Path, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was removed: the rest is that of a stream that keeps everything, and all that is young enough is there.

    And what is remembered does not depend on it, so the next rows are right as well.
    """
    monkeypatch.setattr(commits, "_COMPACT_EVERY", 2)
    keep_us = 12
    plan = replace(case.plan, keep_us=keep_us, facts_per_batch=NODES * FACTS // 4)
    stream = StreamRig(log=case.log, out=tmp_path, plan=plan)
    stream.take({node: facts[-1].seq for node, facts in case.facts.items()})
    assert stream.last is not None
    removed = 0
    for table, wanted in case.tables.items():
        missing = Counter(_told(table, wanted))
        missing.subtract(_rows(tmp_path, table))
        assert min(missing.values(), default=0) >= 0, table
        gone = list(missing.elements())
        removed += len(gone)
        if gone:
            place = TABLES[table].schema.names.index(TIME_COLUMNS[table])
            assert max(_us(row[place]) or 0 for row in gone) < stream.last.newest_at - keep_us, table
    assert removed > 100


@pytest.mark.parametrize("case", [True], ids=["of-a-broker"], indirect=True)
def test_state_that_does_not_fit_is_refused(tmp_path: Path, case: Case) -> None:
    """A table with a hole in it, or with rows twice, would look like one without."""
    everything = {node: facts[-1].seq for node, facts in case.facts.items()}
    plan = replace(case.plan, facts_per_batch=100, tables=("matches",))
    out = tmp_path / "out"

    def taken(ends: dict[str, int]) -> list[tuple[Any, ...]]:
        forget()
        StreamRig(log=case.log, out=out, plan=plan).take(ends)
        return _rows(out, "matches")

    taken(dict.fromkeys(everything, 50))
    shutil.copytree(out / "_stream", tmp_path / "early")
    right = taken(everything)
    assert right == case.tables["matches"]

    whole = tmp_path / "whole"
    shutil.copytree(out / "_stream", whole)
    record = BatchRecord.read(whole / "batch.json")
    assert record is not None
    for lost in ("an old copy", "all", "the checkpoint", "an old checkpoint", "the last batch of it", "the record"):
        shutil.rmtree(out / "_stream")
        if lost == "an old copy":
            shutil.copytree(tmp_path / "early", out / "_stream")
        elif lost != "all":
            shutil.copytree(whole, out / "_stream")
        if lost in {"the checkpoint", "an old checkpoint"}:
            shutil.rmtree(out / "_stream" / "checkpoint")
        if lost == "an old checkpoint":
            shutil.copytree(tmp_path / "early" / "checkpoint", out / "_stream" / "checkpoint")
        if lost == "the last batch of it":
            (out / "_stream" / "checkpoint" / "objects" / str(record.windows_state)).unlink()
        if lost == "the record":
            (out / "_stream" / "batch.json").unlink()
        with pytest.raises(LostStateError, match="start the stream anew"):
            taken(everything)
        assert _rows(out, "matches") == right, lost
    shutil.rmtree(out / "_stream")
    shutil.copytree(whole, out / "_stream")
    (out / "matches").rename(tmp_path / "aside")
    with pytest.raises(LostStateError, match="table matches: found a table up to batch -1, needed is one up to batch"):
        taken(everything)
    assert not (out / "matches").exists()  # what was lost may be put back
    (tmp_path / "aside").rename(out / "matches")
    assert taken(everything) == right


def test_a_batch_that_is_made_again_does_not_go_over_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log was cut while the stream was down: before the batch was recorded, or after."""
    facts = random_log(Random(11), "n", facts=120, has_receipts=True)
    for some in (facts[:60], facts[60:]):
        with LogWriter(tmp_path / "log", "n") as writer:
            for fact in some:
                writer.append(fact)
        export(tmp_path / "log", "n", closed_only=False)
    last = facts[-1].seq
    cut = [
        part.path for name in layout.tables_present(tmp_path / "log") for part in layout.parts(tmp_path / "log", name)
    ]
    cut = [path for path in cut if path.name.startswith(f"part-{1:020}")]
    stream = StreamRig(log=tmp_path / "log", out=tmp_path / "out", plan=StreamPlan(tables=("matches",)))
    stream.take({"n": 40})
    for owner, step in ((BatchCommits, "commit"), (DeltaOutput, "add_files")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, step, _killed)
            with pytest.raises(_KilledError):
                stream.take({"n": last})
        for path in cut:
            path.rename(f"{path}.aside")
        if step == "commit":  # no table has any of it
            with pytest.raises(LostLogError, match="number 41 is not there any more"):
                stream.take({"n": last})
        else:  # its rows are made and recorded: the log is not needed any more
            stream.take({"n": last})
        for path in cut:
            Path(f"{path}.aside").rename(path)
    assert stream.commits.applied == {"n": last}
    wanted = SingleProcess().run(facts).matches
    assert set(_matches(tmp_path / "out")) == set(wanted)


def test_what_was_cut_before_a_stream_began_is_said(spark: SparkSession, tmp_path: Path) -> None:
    """What is not there any more is in no table; whoever reads them must find that out from them, in both ways."""
    facts = random_log(Random(11), "n", facts=120, has_receipts=True)
    with LogWriter(tmp_path / "log", "n", segment_bytes=1) as writer:
        for fact in facts:
            writer.append(fact)
            writer.sync()
    begin, _ = layout.segments(tmp_path / "log", "n")[60]
    for first, path in layout.segments(tmp_path / "log", "n"):
        if first < begin:
            path.unlink()
    tables = ("matches", "dead_letters")
    run(spark, log=tmp_path / "log", out=tmp_path / "batch", plan=Plan(**OPTIONS), tables=tables)
    stream = StreamRig(log=tmp_path / "log", out=tmp_path / "out", plan=StreamPlan(**OPTIONS, tables=tables))
    stream.take({"n": 90})
    assert stream.last is not None
    (note,) = stream.last.notes
    assert f"log of n: numbers 1 to {begin - 1} are not there" in note
    stream.take({"n": 100})
    assert stream.last.notes == ()
    for out in ("batch", "out"):
        (letter,) = read(tmp_path / out, "dead_letters").to_pylist()
        assert (letter["source"], letter["position"], letter["reason"]) == ("log of n", 1, note)
    for first, path in layout.segments(tmp_path / "log", "n"):
        if first < 110:
            path.unlink()
    layout.set_exported_seq(tmp_path / "log", "n", 100)
    with pytest.raises(LostLogError, match="number 101 is not there any more"):
        stream.take({"n": 120})


def _killed(*_: object, **__: object) -> None:
    raise _KilledError


def test_what_cannot_be_read_is_told_as_the_batch_job_tells_it(spark: SparkSession, tmp_path: Path) -> None:
    """Parquet may have been written by others: a row that breaks the contract is a dead letter, and no notification."""
    facts = random_log(Random(11), "n", facts=120, has_receipts=True)
    _write(tmp_path / "log", {"n": facts}, Random(0))
    export(tmp_path / "log", "n")
    wrongs = (
        ("publications", "qos", 7),
        ("publications", "published_at", 2**62),  # in the year 148108: no calendar of Python's has it
        ("presence", "node", None),
        ("interests", "seq", None),
        ("receipts", "outcome", "mislaid"),
    )
    for number, (table, column, wrong) in enumerate(wrongs):
        path = min(
            (tmp_path / "log" / table).rglob("*.parquet"), key=lambda each: int(each.stem.split("-")[1])
        )  # the oldest: when the last fact came is not what this is about
        rows = pq.read_table(path, partitioning=None)
        place = rows.schema.get_field_index(column)
        field = rows.schema.field(place).with_nullable(True)
        own = pa.array([wrong]).cast(field.type) if wrong is not None else pa.nulls(1, field.type)
        column_of = rows.column(place).combine_chunks()
        values = pa.concat_arrays([column_of.slice(0, number), own, column_of.slice(number + 1)])
        pq.write_table(rows.set_column(place, field, values), path)
    tables = ("deliveries", "dead_letters")
    run(spark, log=tmp_path / "log", out=tmp_path / "batch", plan=Plan(**OPTIONS), tables=tables)
    stream = StreamRig(log=tmp_path / "log", out=tmp_path / "out", plan=StreamPlan(**OPTIONS, tables=tables))
    for ends in _cuts(Random(1), {"n": facts}):
        stream.take(ends)
    assert len(_rows(tmp_path / "batch", "dead_letters")) == len(wrongs)
    for table in tables:
        assert _rows(tmp_path / "out", table) == _rows(tmp_path / "batch", table), table
