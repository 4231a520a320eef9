"""Tables of a log that was cut: those of the whole log, for what is newer than the checkpoint that it begins at."""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from random_logs import placed_log
from single_process import Delivery, SingleProcess
from stream_rig import StreamRig, forget

from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.hold.retention import Retention
from whimbrel.hold.sessions import Hold
from whimbrel.hold.store.memory import MemoryStore
from whimbrel.log import layout
from whimbrel.log.checkpoints.codec import CheckpointHeader
from whimbrel.log.checkpoints.folder import save
from whimbrel.log.export import export
from whimbrel.log.reader import read as read_log
from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import Fact, time_of
from whimbrel.pipeline.batch import stages
from whimbrel.pipeline.batch.jobs import run
from whimbrel.pipeline.files.delta import read
from whimbrel.pipeline.fold.described import Described
from whimbrel.pipeline.fold.start_state import left_out, start_state
from whimbrel.pipeline.plans import Plan, StreamPlan
from whimbrel.pipeline.unit.node_share import NodeShare

pytestmark = pytest.mark.usefixtures("interpreted")

NODES, FACTS = 4, 160
RETENTION = Retention(ttl_us=30, max_held=3)
OPTIONS: dict[str, Any] = {"retention": RETENTION, "window_us": 16, "nodes": 7, "slots_per_node": 3}
OPTIONS |= {"range_m": 300.0, "stale_us": 40}


@dataclass(frozen=True)
class Cut:
    """A checkpoint of a node: its number and its time."""

    seq: int
    at: int


def logs_of(seed: int) -> dict[str, list[Fact]]:
    """Return the facts of some nodes."""
    random = Random(seed)
    return {
        f"node{number}": list(placed_log(random, f"node{number}", facts=FACTS, has_receipts=True))
        for number in range(NODES)
    }


def write(log: Path, logs: dict[str, list[Fact]]) -> None:
    """Write them, in small segments."""
    for node, facts in logs.items():
        with LogWriter(log, node, segment_bytes=1_500) as writer:
            for fact in facts:
                writer.append(fact)
                writer.sync()


def cut(log: Path, logs: dict[str, list[Fact]], random: Random) -> dict[str, Cut]:
    """Make two checkpoints of each node but one, and remove the segments that the older one covers."""
    cuts: dict[str, Cut] = {}
    for node, facts in list(logs.items())[1:]:
        older, newer = random.randrange(90, 150), random.randrange(150, 200)
        state = BrokerState(node, hold=Hold(node, retention=RETENTION, heeds_places=True))
        for fact, following in pairwise(facts[: newer + 1]):
            state.apply(fact)
            if fact.seq in {older, newer}:
                state.tick(random.randint(time_of(fact), time_of(following)))  # as time passes in a broker
                state.view.touch_all()
                rows, at = state.view.changes()[0], state.hold.now
                header = CheckpointHeader(node=node, seq=fact.seq, state_at=at, made_at=0, salt=1)
                save(log, header, rows.items())
                cuts.setdefault(node, Cut(fact.seq, at))
        for (_, path), (following_first, _) in pairwise(layout.segments(log, node)):
            if following_first - 1 <= older:
                path.unlink()
    return cuts


def rows_of(out: Path, table: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table; lists in them have no order."""
    for row in read(out, table).to_pylist():
        yield {name: sorted(value, key=repr) if isinstance(value, list) else value for name, value in row.items()}


def micros(moment: Any) -> int:
    """Return a time as the log has it."""
    found: int = round(moment.timestamp() * 1_000_000)
    return found


def newer(out: Path, cuts: dict[str, Cut]) -> dict[str, Counter[str]]:
    """Return the rows of all tables that are about what came after the checkpoints."""

    def of_notification(row: dict[str, Any], decided: str | None = None) -> bool:
        begun = cuts.get(row["notification_node"], Cut(0, 0))
        return row["notification_seq"] > begun.seq or (decided is not None and micros(row[decided]) > begun.at)

    last = max(begun.at for begun in cuts.values())
    wanted: dict[str, Callable[[dict[str, Any]], bool]] = {
        "matches": of_notification,
        "deliveries": lambda row: of_notification(row, "decided_at"),
        "link_quality": lambda row: row["seq"] > cuts.get(row["node"], Cut(0, 0)).seq,
        "popularity": lambda row: micros(row["window_start"]) > last,
        "latency": lambda row: micros(row["window_start"]) > last,
        "contacts": lambda row: row["ended_at"] is not None and micros(row["ended_at"]) > last,
    }

    def told(row: dict[str, Any]) -> str:
        """Return a row, without what was found out about decisions and contacts from before the checkpoint."""
        if "began_at" in row and micros(row["began_at"]) <= last:
            row |= {"began_at": None, "closest_m": None}  # it was going on, and begins there
        return repr(row | {"difference": None} if "difference" in row and not of_notification(row) else row)

    return {table: Counter(told(row) for row in rows_of(out, table) if judge(row)) for table, judge in wanted.items()}


def streamed(log: Path, out: Path, random: Random) -> None:
    """Make tables in batches that end anywhere, by workers that forget."""
    rig = StreamRig(log=log, out=out, plan=StreamPlan(**OPTIONS))
    for end in (random.randrange(160, 10 * FACTS), 10 * FACTS):
        rig.take({f"node{number}": end for number in range(NODES)})
        forget()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_stream_and_one_process_begin_at_a_checkpoint(tmp_path: Path, seed: int) -> None:
    """What was held and wanted there, links, and the bodies that policies decided: nothing newer is missing."""
    logs, random = logs_of(seed), Random(seed)
    write(tmp_path / "log", logs)
    streamed(tmp_path / "log", tmp_path / "whole", random)
    cuts = cut(tmp_path / "log", logs, random)
    streamed(tmp_path / "log", tmp_path / "cut", random)
    for node in logs:
        export(tmp_path / "log", node, closed_only=False, into=tmp_path / "exported")
    streamed(tmp_path / "exported", tmp_path / "cut_and_exported", random)
    wanted = newer(tmp_path / "whole", cuts)
    assert newer(tmp_path / "cut", cuts) == wanted
    assert newer(tmp_path / "cut_and_exported", cuts) == wanted
    assert all(wanted.values())
    told = [row["reason"] for row in rows_of(tmp_path / "cut", "dead_letters")]
    for node, begun in cuts.items():
        assert [each for each in told if f"log of {node}:" in each and f"number {begun.seq + 1}," in each]
    check_one_process(tmp_path / "log", logs, cuts)


def check_one_process(log: Path, logs: dict[str, list[Fact]], cuts: dict[str, Cut]) -> None:
    """One process that begins at the checkpoints finds the matches and deliveries of one that has everything."""
    whole = SingleProcess(retention=RETENTION, assume_receipts=False)
    whole.run(fact for facts in logs.values() for fact in facts)
    begun = SingleProcess(retention=RETENTION, assume_receipts=False)
    for node in logs:
        found = start_state(log, node)
        if found is not None:
            begun.begin(found)
        begun.run(read_log(log, node, first=cuts[node].seq + 1 if node in cuts else 1))
    seqs = {node: begun.seq for node, begun in cuts.items()}
    assert Counter(begun.matches) == Counter(each for each in whole.matches if each.seq > seqs.get(each.node, 0))

    def newer_of(found: list[Delivery]) -> Iterator[Delivery]:
        for each in found:
            at = cuts.get(each.node, Cut(0, 0))
            if each.seq > at.seq:
                yield each
            elif each.decided_at > at.at:
                yield replace(each, difference=None)

    assert Counter(newer_of(begun.deliveries)) == Counter(newer_of(whole.deliveries))


def test_the_batch_job_begins_at_a_checkpoint(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shards go on with what the sessions of each held."""
    monkeypatch.setattr(stages, "divide", lambda spans, cores: dict.fromkeys((span.node for span in spans), 3 * cores))
    logs, random = logs_of(7), Random(7)
    write(tmp_path / "log", logs)
    streamed(tmp_path / "log", tmp_path / "whole", random)
    cuts = cut(tmp_path / "log", logs, random)
    tables = ["matches", "deliveries", "popularity", "latency", "link_quality", "contacts", "dead_letters"]
    run(spark, log=tmp_path / "log", out=tmp_path / "cut", tables=tables, plan=Plan(**OPTIONS))
    wanted = newer(tmp_path / "whole", cuts)
    assert newer(tmp_path / "cut", cuts) == wanted
    assert all(wanted.values())
    told = [row["reason"] for row in rows_of(tmp_path / "cut", "dead_letters")]
    assert all(any(f"log of {node}: it was cut" in each for each in told) for node in cuts)


def test_a_checkpoint_of_format_1_is_read_as_one_that_does_not_say(tmp_path: Path) -> None:
    """Its subscriptions get numbers that no other has, and links begin anew."""
    with tarfile.open(Path(__file__).parent.parent / "data" / "data-directory-1.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    found = start_state(tmp_path / "data" / "log", "node-1")
    assert found is not None
    assert found.seq == 87
    wanted = found.interest_rows().to_pylist()
    assert [(row["seq"], row["subject_filter"]) for row in wanted] == [(0, "kept/t")]
    store = MemoryStore()
    store.replace(found.seq, dict(found.rows))
    share = NodeShare("node-1", store, retention=RETENTION, assume_receipts=False)
    assert {held.seq for held in share.find_held()}
    assert {Described.restored(1, row).subject for key, row in found.rows if key[0] == "notification"} == {"kept/t"}
    assert not share.links.state


@pytest.mark.parametrize("damaged", [1, 2])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, damaged: int) -> None:
    """The newer one is as good a beginning; where neither is sound, the log begins with nothing, and says so."""
    logs = logs_of(5)
    write(tmp_path, logs)
    cuts = cut(tmp_path, logs, Random(5))
    for _, path in layout.checkpoints(tmp_path, "node1")[:damaged]:
        path.write_bytes(path.read_bytes()[:-1])
    found = start_state(tmp_path, "node1")
    assert (found is None) == (damaged == 2)
    assert found is None or found.seq > cuts["node1"].seq
    (missing,) = left_out(tmp_path, "node1")
    assert ("checkpoint" in str(missing)) == (damaged == 1)
