"""A stream that is killed again and again while its log grows, and a judge of the tables that it leaves.

The stream is ``whimbrel pipeline run --continuous`` in a process of its own, with Java and Python's workers below it.
It is killed with SIGKILL, whole or only its workers, and started again on the same folder. In the end it reads to the
log's end, and every table must be the one that the batch job makes of the same log.
Rule: who is killed is found by the session or the parents that we started, never by name alone.
Rule: some kills are aimed at a step of a batch (``AIMS``), because most steps are short; the disk says where each hit.
Rule: all randomness comes of one seed. The stream's pace does not, so a seed gives the same plan, not the same history.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any, Self

sys.path.insert(0, str(Path(__file__).parents[1] / "differential"))  # for the bench, which has no pytest to do so

from pyspark.sql import SparkSession
from random_logs import random_log
from stream_rig import StreamRig, forget

from whimbrel.log.export import export
from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import Decided, Fact, InterestChanged, Receipt, Reported
from whimbrel.model.notification import Notification
from whimbrel.pipeline import TABLES_MADE
from whimbrel.pipeline.batch.jobs import run
from whimbrel.pipeline.files.delta import DeltaOutput, read
from whimbrel.pipeline.files.snapshots import snapshot
from whimbrel.pipeline.plans import Plan, StreamPlan
from whimbrel.pipeline.stream.state.batch_record import BatchRecord

__all__ = [
    "AIMS",
    "Growing",
    "Killed",
    "Killing",
    "StreamProcess",
    "StreamRig",
    "differences",
    "executors",
    "forget",
    "kill_stream",
]

NODES = ("node0", "node1")
MINUTE_US = 60_000_000
WINDOW = 30
"""Minutes of a window."""
PLAN = Plan(window_us=WINDOW * MINUTE_US, nodes=7, slots_per_node=3)

STARTING, ANYWHERE, RECORDING, WRITING, WRITTEN, WORKERS = AIMS = (
    "starting", "anywhere", "recording", "writing", "written", "workers"
)  # fmt: skip
"""When it is killed: before its first batch is over; at any moment; once the first table has a batch; once all have;
once the batch is recorded, before any table has it; and its workers alone, at any moment."""

_JAVA_HOME_FILE = Path(__file__).parents[2] / ".java" / "home"
_LOOK_S, _AIM_S = 0.02, 0.002
"""Between two looks; where a kill is aimed, more often."""
_PATIENCE_S = 1_800.0  # Spark starts in ten seconds, or in minutes where others work too
_EVERY_S = 1
NICER = 1
"""By how much it gives way; enough to be seen."""
_PER_BATCH, _AHEAD = 40, 160
"""Facts of each node."""
_WORKERS_S = 5
_OFTEN_BUSY = 0.7
"""Part of the starts after the first in which nodes are busy."""
_ALL = 4
"""Tables that every batch changes, nearly."""
_PLANNED = (
    *("--window", f"{WINDOW}m", "--nodes", str(PLAN.nodes), "--slots", str(PLAN.slots_per_node)),
    *("--nice", str(NICER)),
    *("--lateness", "999999d"),  # nobody is late, as in a batch: the nodes' clocks are random, and far apart
)
_CONTINUOUS = (*_PLANNED, "--continuous", "--every", f"{_EVERY_S}s", "--facts-per-batch", str(_PER_BATCH))
_TO_THE_END = (*_PLANNED, "--available-now", "--facts-per-batch", "1000000")


# -- the log -----------------------------------------------------------------------------------------------------------


class Growing:
    """A log that grows while the ``with`` block lasts: a few facts of every node at a time, exported now and then.

    It stays a little ahead of whoever reads it, however fast that is.
    """

    def __init__(self, directory: Path, random: Random, *, facts: int) -> None:
        self._facts = {node: _in_minutes(random_log(random, node, facts=facts, has_receipts=True)) for node in NODES}
        self.directory, self._random = directory, random
        self._written, self._is_over = 0, Event()
        self._most = _AHEAD
        self._thread = Thread(target=self._grow, daemon=True)
        self._error: BaseException | None = None

    @property
    def written(self) -> int:
        """How many facts of each node there are."""
        return self._written

    def read(self, told: Mapping[str, Any]) -> None:
        """Note how far a reader says it is."""
        self._most = max(self._most, min(told["applied"].get(node, 0) for node in NODES) + _AHEAD)

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._written:  # a stream of a log that does not exist is refused
            time.sleep(_LOOK_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _grow(self) -> None:
        logs = {node: LogWriter(self.directory, node, segment_bytes=8_000) for node in NODES}
        try:
            for log in logs.values():
                log.open()
            total = len(self._facts[NODES[0]])
            while self._written < total and not self._is_over.wait(0.05):
                some = min(self._random.randint(1, 12), total - self._written)
                if self._written + some > self._most:
                    continue
                for node, log in logs.items():
                    for fact in self._facts[node][self._written : self._written + some]:
                        log.append(fact)
                    log.settle()
                self._written += some
                if self._random.random() < 0.03:
                    export(self.directory, self._random.choice(NODES))
        except BaseException as error:  # noqa: BLE001 # whoever waits for the log is told
            self._error, self._written = error, max(self._written, 1)
        finally:
            for log in logs.values():
                log.close()


def _in_minutes(facts: Iterable[Fact]) -> list[Fact]:
    """Return *facts* with a minute for each of their microseconds, so that the command's whole seconds will do."""
    return [_stretched(fact) for fact in facts]


def _stretched(fact: Fact) -> Fact:
    if isinstance(fact, Notification):
        return replace(
            fact,
            published_at=fact.published_at * MINUTE_US,
            expires_at=_minutes(fact.expires_at),
            deadline_at=_minutes(fact.deadline_at),
        )
    if isinstance(fact, Receipt):
        return replace(fact, handed_at=fact.handed_at * MINUTE_US)
    if isinstance(fact, Reported):
        return replace(fact, state=replace(fact.state, reported_at=fact.state.reported_at * MINUTE_US))
    if isinstance(fact, InterestChanged):
        subscription = replace(fact.subscription, ttl_us=_minutes(fact.subscription.ttl_us))
        return replace(fact, changed_at=fact.changed_at * MINUTE_US, subscription=subscription)
    if isinstance(fact, Decided):
        return replace(fact, decided_at=fact.decided_at * MINUTE_US)
    return replace(fact, changed_at=fact.changed_at * MINUTE_US)


def _minutes(number: int | None) -> int | None:
    return None if number is None else number * MINUTE_US


# -- the process -------------------------------------------------------------------------------------------------------


class StreamProcess:
    """``whimbrel pipeline run`` on *log* as a stream, with everything that it starts.

    If it *is_busy*, a few facts suffice to fold a node in groups of its sessions.
    """

    def __init__(
        self,
        log: Path,
        out: Path,
        *options: str,
        is_busy: bool = False,
        on_told: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        program = [str(Path(__file__).with_name("busy_nodes.py"))] if is_busy else ["-m", "whimbrel"]
        command = [sys.executable, *program, "pipeline", "run", "--log", str(log), "--out", str(out), "--json"]
        self.told: list[dict[str, Any]] = []
        """What it said of its batches."""
        self._on_told = on_told
        self.errors = out.parent / "errors.log"
        with self.errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [*command, *options],
                env=_environment(),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._is_killed = False
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError):  # the last line of one that was killed may be half a line
                self.told.append(json.loads(line))
                self._on_told(self.told[-1])

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def wait(self) -> int:
        """Wait until it ends by itself; return its exit status."""
        return self._process.wait(_PATIENCE_S)

    def stop(self) -> int:
        """Tell it to stop, as a service is told, and return its exit status."""
        self._process.terminate()
        return self.wait()

    @property
    def pid(self) -> int:
        """The number of the process that drives."""
        return self._process.pid

    def java(self) -> list[int]:
        """Return Java below it."""
        return [pid for pid in _of_session(self._process.pid) if "org.apache.spark" in _line(pid)]

    def workers(self) -> list[int]:
        """Return Python's workers below it."""
        return [pid for pid in _of_session(self._process.pid) if "pyspark" in (line := _line(pid)) and _is_worker(line)]

    def kill(self) -> None:
        """Kill it and everything that it started, at once; a worker of Python has a group of its own."""
        if self._is_killed:  # its number may be somebody else's by now
            return
        self._is_killed = True
        while found := [pid for pid in _of_session(self._process.pid) if _is_alive(pid)]:
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            time.sleep(_LOOK_S)
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    if "JAVA_HOME" not in environment and _JAVA_HOME_FILE.exists():
        environment["JAVA_HOME"] = _JAVA_HOME_FILE.read_text(encoding="utf-8").strip()
    return environment | {"SPARK_LOCAL_IP": "127.0.0.1"}


def _is_worker(line: str) -> bool:
    return "pyspark.daemon" in line or "pyspark.worker" in line


def _numbers() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _of_session(session: int) -> list[int]:
    """Return the processes of a session, which everything that is started in it stays in."""
    return [pid for pid in _numbers() if _status(pid)[3:4] == [str(session)]]


def below(parents: Iterable[int]) -> list[int]:
    """Return the processes that *parents* have started, and those have, and so on."""
    found, seen = list(parents), _numbers()
    for parent in found:
        found += [pid for pid in seen if _status(pid)[1:2] == [str(parent)]]
    return found


def _status(pid: int) -> list[str]:
    """Return state, parent, group, session … of a process; nothing of one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return []


def _is_alive(pid: int) -> bool:
    return _status(pid)[:1] not in ([], ["Z"])


def _line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace").replace("\0", " ")
    except OSError:
        return ""


def executors(workers: Iterable[int]) -> list[int]:
    """Return the executors that the workers of a cluster have started, and Python's workers below these."""
    return [pid for pid in below(workers) if "CoarseGrainedExecutorBackend" in (line := _line(pid)) or _is_worker(line)]


# -- killing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Killing:
    """A time it was killed."""

    aim: str
    hit: str
    """Where it was, as the disk says."""
    batch: int


@dataclass(slots=True)
class Killed:
    """How it went."""

    seed: int
    kills: list[Killing] = field(default_factory=list)
    starts: int = 0
    ends: int = 0
    """How often it ended by itself after its workers were killed, and had to be started again."""
    batches: int = 0
    facts: int = 0
    """Of each node."""
    niceness: int | None = None
    """Of the process that drives, when it was last seen."""

    def summary(self) -> dict[str, object]:
        """Return it in numbers."""
        return {
            "seed": self.seed,
            "kills": len(self.kills),
            "aimed at": dict(Counter(each.aim for each in self.kills)),
            "hit": dict(Counter(each.hit for each in self.kills)),
            "starts": self.starts,
            "ended after a worker": self.ends,
            "batches": self.batches,
            "facts of each node": self.facts,
        }


def kill_stream(
    folder: Path,
    aims: Iterable[str],
    *,
    seed: int,
    facts: int,
    master: str = "local[2,4]",
    cluster: Callable[[], list[int]] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Killed:
    """Run a stream on a log that grows, kill it once for each of *aims*, then let it read everything.

    It folds nodes in groups of sessions at first, and then often; they stay in groups, also when they are not busy.

    Log and tables are in *folder*. *cluster* returns what to kill of a cluster where workers are to be; on this
    machine a task that lost its worker is tried again, because *master* says how often.
    """
    random = Random(seed)
    killed = Killed(seed)
    out = folder / "stream"
    process: StreamProcess | None = None
    try:
        with Growing(folder / "log", random, facts=facts) as growing:
            for aim in aims:
                if process is None:
                    options = (*_CONTINUOUS, "--master", master)
                    is_busy = not killed.starts or random.random() < _OFTEN_BUSY
                    process = StreamProcess(growing.directory, out, *options, is_busy=is_busy, on_told=growing.read)
                    killed.starts += 1
                process = _struck(process, aim, killed, out, random, cluster)
                progress(f"{killed.kills[-1]}, {growing.written} facts of each node")
        if process is not None:
            process.kill()
        process = StreamProcess(growing.directory, out, *_TO_THE_END, "--master", master)
        status = process.wait()
    finally:
        if process is not None:
            process.kill()
    killed.starts += 1
    killed.batches += len(process.told)
    killed.facts = growing.written
    assert status == 0, f"it ended with {status}:\n{process.errors.read_text()[-2_000:]}"
    return killed


def _struck(
    process: StreamProcess, aim: str, killed: Killed, out: Path, random: Random, cluster: Callable[[], list[int]] | None
) -> StreamProcess | None:
    """Kill as *aim* says; return the process if it goes on."""
    if aim == STARTING:
        time.sleep(random.uniform(0, 12))
    else:
        _await(lambda: process.told, process)
        killed.niceness = os.getpriority(os.PRIO_PROCESS, process.pid)
        _await_aim(aim, out, process, random)
    if aim != WORKERS:
        process.kill()
        killed.batches += len(process.told)
        killed.kills.append(Killing(aim, *_place(out)))
        return None
    before = len(process.told)
    victims: list[int] = []

    def found() -> list[int]:
        victims[:] = process.workers() if cluster is None else cluster()
        return victims

    _await(found, process, at_most_s=_WORKERS_S)
    assert victims, "a stream folds in workers, and there are none"
    for pid in random.sample(victims, random.randint(1, len(victims))):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    killed.kills.append(Killing(aim, "while it ran", process.told[-1]["batch"]))
    _await(lambda: len(process.told) > before + 1 or not process.is_running)
    if process.is_running:
        return process
    process.kill()
    killed.batches += len(process.told)
    killed.ends += 1
    return None


def _await_aim(aim: str, out: Path, process: StreamProcess, random: Random) -> None:
    batch = process.told[-1]["batch"]
    if aim in {ANYWHERE, WORKERS}:
        time.sleep(random.uniform(0, 2 * _EVERY_S))
        return
    if aim == RECORDING:
        record = out / "_stream" / "batch.json"
        _await(lambda: _batch(record) > batch, process, look_s=_AIM_S)
        return
    wanted = _ALL if aim == WRITTEN else 1
    _await(lambda: _written(out, batch + 1) >= wanted, process, look_s=_AIM_S)


def _batch(path: Path) -> int:
    record = BatchRecord.read(path)
    return -1 if record is None else record.batch


def _written(out: Path, batch: int) -> int:
    """Return how many tables have a batch."""
    return sum(DeltaOutput(out, table).has(batch) for table in TABLES_MADE)


def _await(
    is_so: Callable[[], object],
    process: StreamProcess | None = None,
    *,
    look_s: float = _LOOK_S,
    at_most_s: float | None = None,
) -> None:
    """Wait until something is so; *process* must not end before."""
    end = time.monotonic() + (at_most_s or _PATIENCE_S)
    while not is_so():
        if process is not None and not process.is_running:
            raise AssertionError(f"the stream ended:\n{process.errors.read_text()[-2_000:]}")
        if time.monotonic() > end:
            if at_most_s is not None:
                return
            raise TimeoutError("the stream does nothing")
        time.sleep(look_s)


def _place(out: Path) -> tuple[str, int]:
    """Return which step a dead stream was at, and of which batch."""
    record = BatchRecord.read(out / "_stream" / "batch.json")
    if record is None:
        return "before the first batch", -1
    if record.is_done:
        return "reading, matching or between batches", record.batch
    count = _written(out, record.batch)
    return ("some tables written" if count else "recorded"), record.batch


# -- judging -----------------------------------------------------------------------------------------------------------


def differences(spark: SparkSession, folder: Path, *, is_quick: bool = False) -> list[str]:
    """Return how the tables of the stream in *folder* differ from those of the batch job; none, and all is well.

    If it must be quick, from those of a stream that nobody interrupts: that this is the same is shown elsewhere.
    """
    if is_quick:
        given = {each.name: getattr(PLAN, each.name) for each in fields(PLAN)}
        stream = StreamRig(log=folder / "log", out=folder / "truth", plan=StreamPlan(**given))
        stream.take(snapshot(folder / "log").last)
    else:
        run(spark, log=folder / "log", out=folder / "truth", plan=PLAN)
    found = []
    for table in TABLES_MADE:
        ours, wanted = Counter(rows(folder / "stream", table)), Counter(rows(folder / "truth", table))
        missing, surplus = wanted - ours, ours - wanted
        if missing or surplus:
            example = next(iter([*surplus, *missing]))
            found.append(f"{table}: {missing.total()} missing, {surplus.total()} too many, such as {example}")
        if table not in {"dead_letters", "contacts", "meetings"} and not wanted:  # no device is anywhere in these logs
            found.append(f"{table}: it has no rows, so nothing was tried")
    return found


def rows(out: Path, table: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table; lists in rows are sorted, and when a dead letter was found is left out."""
    found = read(out, table)
    columns = [found.column(name).to_pylist() for name in found.schema.names if name != "found_at"]
    return map(_frozen, zip(*columns, strict=True))


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted((key, _frozen(each)) for key, each in value.items()))
    if isinstance(value, list):
        return tuple(sorted(map(_frozen, value), key=repr))
    return tuple(map(_frozen, value)) if isinstance(value, tuple) else value
