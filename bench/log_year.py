"""A year of a ward in some minutes: whether the broker's log stays within its bounds, and a start stays short.

    python bench/log_year.py [--days 365] [--messages 1000] [--keep]   # --keep writes bench/results/log-year

The broker's state, storage and log keeper are the real ones; there are no sockets, and nobody waits for time to pass:
a year is what its messages make of the log, day by day. Nurses' phones hold what comes while they are away, one phone
never comes back, a dead stream has registered as a reader, and all is killed and started without a view every 60 days.
Rule: the result is asserted, whoever runs it: the disk's bound, the start, and the memory after the second month.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from measure import Check, Figure, Grid, Report, machine_facts, write
from whimbrel.broker.settings.config import Config, LogSettings, NodeSettings
from whimbrel.broker.shell.disk.log_truncator import DutyCycle, LogTruncator, TruncationRun
from whimbrel.broker.shell.disk.storage import Storage
from whimbrel.broker.state.routes import Routes
from whimbrel.hold.private import private_session
from whimbrel.log.keeping.plan import US_PER_DAY
from whimbrel.log.keeping.readers import lost_readers, register
from whimbrel.model.facts import Fact, InterestChanged, Mode, PresenceChange, PresenceChanged
from whimbrel.model.subscription import InterestChange, Subscription
from whimbrel.sim.load.processes import resident_bytes
from whimbrel.sim.ward.monitors import ward

NODE = "ward-3"
START = 1_767_225_600_000_000  # 2026-01-01
MIB = 1 << 20
SEGMENT_BYTES, RETAIN_DAYS, RETAIN_BYTES, READER_BYTES = 128 << 10, 30, 3 * MIB, 1 * MIB
SLACK_BYTES = MIB
"""What may stand beyond the bound: the open segment, and what the older checkpoint does not cover."""
KILLED_EVERY_DAYS = 60
PHONES = 8


class Node:
    """A broker without sockets."""

    def __init__(self, data: Path) -> None:
        log = LogSettings(
            segment_bytes=SEGMENT_BYTES,
            retain_days=RETAIN_DAYS,
            retain_bytes=RETAIN_BYTES,
            retain_free_bytes=0,
            retain_reader_bytes=READER_BYTES,
            retain_reader_days=0,
        )
        self.data, self._config = data, replace(Config(), node=NodeSettings(name=NODE, data=str(data)), log=log)
        self.start()

    def start(self) -> float:
        """Start; return how many core seconds it took."""
        began = time.process_time()
        self.storage = Storage(self._config)
        self.state, self.restored = self.storage.open(Routes())
        view = self.data / f"view-{NODE}.sqlite"
        self.keeper = LogTruncator(
            self.data / "log", NODE, view, self._config.log, pace=DutyCycle(sleep=lambda _: None)
        )
        return time.process_time() - began

    def take(self, fact: Fact) -> None:
        """Log and apply a fact."""
        self.storage.log.append(fact)
        self.state.apply(fact)

    def settle(self, now: int) -> TruncationRun:
        """Sync, bring the view up to date, and look after the log."""
        self.state.tick(now)
        self.storage.log.sync()
        self.storage.write_view(self.storage.log.next_seq - 1, *self.state.view.changes())
        kept = self.keeper.keep(now)
        assert kept is not None
        assert not kept.troubles, kept.troubles
        self.keeper.totals.last = kept
        return kept

    def restart_without_view(self) -> float:
        """Stop, lose the view, and start again; return how many core seconds the start took."""
        self.storage.close()
        for path in self.data.glob("view-*"):
            path.unlink()
        return self.start()


def phones(node: Node) -> Iterator[Fact]:
    """Yield how the phones come, subscribe, and go: only the first six ever come back."""
    seq = node.storage.log.next_seq
    for number in range(PHONES):
        device = f"phone-{number}"
        session = private_session(device)
        expiry = {"session_expiry_us": 400 * US_PER_DAY, "confirms": False}
        yield PresenceChanged(
            node=NODE, seq=seq, changed_at=START, device=device, change=PresenceChange.JOINED, session=session,
            receipt=Mode.TAKE, **expiry,  # type: ignore[arg-type]  # by name
        )  # fmt: skip
        bed = Subscription(
            session=session, subject_filter=f"bed/+/{'pump' if number % 2 else 'vitals'}", qos=1, max_held=1_000,
            ttl_us=2 * US_PER_DAY,
        )  # fmt: skip
        yield InterestChanged(
            node=NODE, seq=seq + 1, changed_at=START, change=InterestChange.ADDED, subscription=bed, device=device
        )
        yield PresenceChanged(
            node=NODE, seq=seq + 2, changed_at=START, device=device, change=PresenceChange.DISCONNECTED
        )
        seq += 3


def disk_bytes(data: Path) -> int:
    """Return what the data directory takes."""
    return sum(path.stat().st_size for path in data.rglob("*") if path.is_file())


def live(folder: Path, days: int, messages: int) -> Report:
    """Live for so many days; return what was seen."""
    report, rows = Report("log-year", ("whimbrel",)), []
    node = Node(folder)
    for fact in phones(node):
        node.take(fact)
    register(node.data / "log", NODE, "dead-stream", seq=1, now=START)
    world = ward(random.Random(7), start=START, node=NODE, every_s=86_400 / messages)
    most_disk = most_log = made = cut = 0
    starts: list[float] = []
    memory: list[int] = []
    began, lost_on = time.process_time(), None
    print("day     facts   log MiB  disk MiB  oldest day  checkpoint KiB  resident MiB")
    for day in range(1, days + 1):
        now = START + day * US_PER_DAY
        for each in world:
            fact = replace(each, seq=node.storage.log.next_seq, qos=1 if made % 10 else 0)
            node.take(fact)
            made += 1
            if fact.published_at >= now or made % messages == 0:
                break
        kept = node.settle(max(now, node.storage.log.last_at))
        cut += kept.cut_bytes
        most_log = max(most_log, kept.disk.segment_bytes + kept.disk.checkpoint_bytes)
        most_disk = max(most_disk, disk_bytes(folder))
        if lost_on is None and lost_readers(folder / "log", NODE):
            lost_on = day
        if day % KILLED_EVERY_DAYS == 0:
            starts.append(node.restart_without_view())
        memory.append(resident_bytes(os.getpid()))
        if day % 30 == 0 or day == days:
            oldest = (kept.disk.oldest_at - START) / US_PER_DAY if kept.disk.oldest_at else 0
            log, disk = kept.disk.segment_bytes / MIB, disk_bytes(folder) / MIB
            state = kept.disk.checkpoint_bytes / 1_024
            rows.append((str(day), node.storage.log.next_seq - 1, log, disk, oldest, state, memory[-1] / MIB))
            print(f"{day:3} {node.storage.log.next_seq - 1:9} {log:9.1f} {disk:9.1f} {oldest:11.1f}"
                  f" {state:15.1f} {memory[-1] / MIB:13.1f}")  # fmt: skip
    starts.append(node.restart_without_view())
    node.storage.close()
    growth = memory[-1] / memory[min(60, days - 1)]
    headings = ("day", "facts", "log MiB", "all files MiB", "oldest day", "checkpoints KiB", "resident MiB")
    report.grids.append(Grid("A year of a ward", headings, tuple(rows)))
    report.figures += [
        Figure("messages", made, ""),
        Figure("core time", time.process_time() - began, "s"),
        Figure("cut", cut / MIB, "MiB"),
        Figure("largest log and checkpoints", most_log / MIB, f"MiB of {RETAIN_BYTES / MIB:.0f}"),
        Figure("largest, all files", most_disk / MIB, "MiB"),
        Figure("longest start without a view, core time", max(starts), "s"),
        Figure("memory at the end, of that after the second month", growth, "×"),
    ]
    report.checks += [
        Check(
            f"log and checkpoints within {(RETAIN_BYTES + SLACK_BYTES) / MIB:.0f} MiB",
            most_log <= RETAIN_BYTES + SLACK_BYTES,
        ),
        Check("each start within 5 s of core time", max(starts) < 5),
        Check("memory flat: less than 1.2 × of that after the second month", growth < 1.2),
        Check(f"the dead stream lost its place (day {lost_on})", days < 60 or lost_on is not None),
    ]
    return report


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--messages", type=int, default=1_000, help="a day")
    parser.add_argument("--keep", action="store_true", help="write the results beside those of the other benchmarks")
    options = parser.parse_args()
    machine = machine_facts(" ".join(["python", "bench/log_year.py", *sys.argv[1:]]))
    folder = Path(tempfile.mkdtemp(prefix="whimbrel-year-"))
    try:
        report = live(folder, options.days, options.messages)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for figure in report.figures:
        print(f"{figure.name}: {figure.value:.2f} {figure.unit}")
    for check in report.checks:
        print("holds" if check.passed else "FAILS", check.claim)
    if options.keep:
        write(report, machine, Path(__file__).parent / "results")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
