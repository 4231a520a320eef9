"""Log keeper: makes checkpoints of the view and removes old log segments (log retention), in a separate thread.

The view is the stored snapshot of the broker's state. A checkpoint is a copy of the view as it was at one commit, read
over a separate database connection: the event loop and the view writer continue meanwhile. It costs core time only in a
thread that sleeps twice as long as it works.
Rule: a segment is removed only if the older of two sound checkpoints covers it (``log.checkpoints``), so that a restart
needs neither the view nor the removed records. If the disk is nearly full, one sound checkpoint and the view suffice.
Rule: if the log exceeds its bounds and no closed segment may be removed, the open segment is closed early, so that it
can be removed as soon as two checkpoints cover it; and the keeper looks again at once, not after its usual interval.
Rule: a failure here (a full disk, a damaged file) is logged once and retried; the broker continues to serve clients.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import cbor2
import structlog

from whimbrel.broker.settings.log import LogSettings
from whimbrel.broker.shell.disk.space import DiskSpace
from whimbrel.broker.shell.metrics import LogFigures
from whimbrel.errors import WhimbrelError
from whimbrel.hold.store.sqlite import SqliteStore
from whimbrel.log import layout
from whimbrel.log.checkpoints.codec import CheckpointHeader
from whimbrel.log.checkpoints.folder import CheckpointInfo, cut_limit, newest_sound, save
from whimbrel.log.checkpoints.waiting import Waiting
from whimbrel.log.errors import LogWriteError
from whimbrel.log.keeping.cutting import OnDisk, cut, on_disk
from whimbrel.log.keeping.plan import Bounds, Plan, Reader, is_checkpoint_due, plan
from whimbrel.log.keeping.readers import read_registered

__all__ = ["DutyCycle", "LogTruncator", "TruncationRun"]

_log = structlog.get_logger("whimbrel")
_ARCHIVE = "archive"
"""Name under which the export to ``[log] export`` appears among the readers of the log."""
_EXPORT_S = 3_600
_LOOK_S = 0.2
_NICENESS = 10
_TURN_S = 0.002
_LOOKS, _MAX_LOOK_BYTES = 8, 64 << 20
"""The keeper looks at the disk each time the log has grown by 1/8 of the space to keep free, at most by 64 MiB."""
_LEAST_SEGMENT_BYTES, _SEGMENT_SHARE = 1 << 20, 16
"""The open segment is closed early only if it has at least 1 MiB, and 1/16 of the size of a full segment."""
_REST, _MAX_REST_S = 2.0, 1.0
"""The thread sleeps this many times as long as it worked, and at most this many seconds."""


class Stopped(Exception):  # noqa: N818 # it is not an error, but ends the thread's work when the broker stops
    """The broker stops, so the work of the keeper's thread is abandoned."""


class DutyCycle:
    """Duty cycle of a thread: sleeps between steps of the work, so that the event loop has the GIL most of the time."""

    def __init__(
        self, *, sleep: Callable[[float], object] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stopping = threading.Event()
        self._sleep: Callable[[float], object] = self._stopping.wait if sleep is None else sleep
        self._clock = clock
        self._since = clock()

    def begin(self) -> None:
        """Start to measure the duration of a step of the work."""
        self._since = self._clock()

    def __call__(self) -> None:
        """Sleep twice as long as the last step took, if it took 2 ms or more; raise ``Stopped`` if the broker stops."""
        if self._stopping.is_set():
            raise Stopped
        worked = self._clock() - self._since
        if worked >= _TURN_S:
            self._sleep(min(_REST * worked, _MAX_REST_S))
            self._since = self._clock()

    @property
    def is_stopping(self) -> bool:
        """Whether the broker stops, so that the work must be abandoned."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """End a sleep that is under way, and make the thread abandon its work after the present step."""
        self._stopping.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncationRun:
    """Result of one run of the keeper: the disk usage, and the checkpoint and segments that it made and removed."""

    disk: OnDisk
    free_bytes: int
    plan: Plan
    cut_bytes: int = 0
    checkpoint: CheckpointInfo | None = None
    """The checkpoint that this run made, or None."""
    absent: tuple[tuple[str, int], ...] = ()
    """Sessions in that checkpoint whose devices are all absent, with the sizes of their queues, the longest first."""
    readers: tuple[Reader, ...] = ()
    troubles: tuple[str, ...] = ()


@dataclass(slots=True)
class _Totals:
    """Totals of the keeper's runs since the broker started, for metrics; and its last run."""

    cut_bytes: int = 0
    checkpoints: int = 0
    readers_lost: int = 0
    troubles: tuple[str, ...] = ()
    last: TruncationRun | None = None
    expired: set[str] = field(default_factory=set)


class LogTruncator:
    """Retention of the log in *directory*: bounds its size, its age and free space; *view* is the snapshot's file."""

    def __init__(
        self,
        directory: Path,
        node: str,
        view: Path,
        settings: LogSettings,
        *,
        end_segment: Callable[[int], bool] = lambda _: False,
        space: DiskSpace | None = None,
        free: Callable[[], int] | None = None,
        pace: DutyCycle | None = None,
    ) -> None:
        self._directory, self._node, self._view, self._settings = directory, node, view, settings
        self._free: Callable[[], int] = (lambda: shutil.disk_usage(directory).free) if free is None else free
        self._pace = DutyCycle() if pace is None else pace
        self._end_segment, self.space = end_segment, space
        self._bounds = Bounds(
            days=settings.retain_days,
            bytes=settings.retain_bytes,
            free_bytes=settings.retain_free_bytes,
            reader_bytes=settings.retain_reader_bytes,
            reader_days=settings.retain_reader_days,
        )
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="keep")
        self._is_working = False
        self.totals = _Totals()

    # -- on the event loop -------------------------------------------------------------------------------------------

    def turn(self, loop: asyncio.AbstractEventLoop, now: int) -> None:
        """Start a run in the keeper's thread (checkpoint, removal of old segments), unless one is under way."""
        if not self._is_working:
            self._is_working = True
            loop.run_in_executor(self._pool, self.keep, now).add_done_callback(self._end)

    def close(self) -> None:
        """Stop the thread, and abandon a run that is under way; half-written files do not have their final name yet."""
        self._pace.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _end(self, done: asyncio.Future[TruncationRun | None]) -> None:
        self._is_working = False
        if done.cancelled():
            return
        if (kept := done.result()) is not None:
            self.tell(kept)

    def tell(self, kept: TruncationRun) -> None:
        """Add the results of a run to the totals, and log once the events that an operator should know of."""
        totals = self.totals
        totals.last = kept
        totals.cut_bytes += kept.cut_bytes
        totals.readers_lost += len(kept.plan.lost)
        if kept.checkpoint is not None:
            totals.checkpoints += 1
            made = kept.checkpoint
            told: dict[str, object] = {"seq": made.header.seq, "rows": made.rows, "bytes": made.size_bytes}
            if kept.absent:
                told |= {"absent_sessions": len(kept.absent), "most_held_by": kept.absent[0][0]}
                told["held"] = kept.absent[0][1]
            _log.info("checkpoint made", **told)
        if kept.cut_bytes:
            reasons = [reason.value for reason in kept.plan.reasons]
            _log.info("log cut", bytes=kept.cut_bytes, oldest=kept.disk.oldest, reasons=reasons)
        for reader in kept.plan.lost:
            _log.warning(
                "a reader of the log was too far behind and lost its place: what it had not read was cut",
                reader=reader.name,
                read_to=reader.seq,
                oldest=kept.disk.oldest,
            )
        expired = {reader.name for reader in kept.plan.expired}
        for name in sorted(expired - totals.expired):
            _log.warning("a reader of the log has not been heard of for too long; nothing is kept for it", reader=name)
        totals.expired = expired
        for trouble in kept.troubles:
            if trouble not in totals.troubles:
                _log.warning("the log cannot be kept within its bounds now; it is tried again", reason=trouble)
        totals.troubles = kept.troubles

    @property
    def look_after_bytes(self) -> int:
        """Growth of the log, in bytes, after which the keeper runs although its interval is not over."""
        return min(max(self._bounds.free_bytes // _LOOKS, _LEAST_SEGMENT_BYTES), _MAX_LOOK_BYTES)

    @property
    def is_tight(self) -> bool:
        """Whether to slow publishers: free space is under half of its bound, or the log is over 25 % too large."""
        last, bounds = self.totals.last, self._bounds
        if last is None:
            return False
        total = last.disk.segment_bytes + last.disk.checkpoint_bytes
        return last.free_bytes < bounds.free_bytes // 2 or (bounds.bytes > 0 and total > bounds.bytes * 5 // 4)

    @property
    def is_urgent(self) -> bool:
        """Whether to run again soon: after the last run the log was still too large, or part of the run failed."""
        last = self.totals.last
        return last is not None and (last.plan.is_short or bool(last.troubles))

    @property
    def begin(self) -> tuple[int, int]:
        """First seq of the log, and the time of the last record before it, when the keeper last ran."""
        last = self.totals.last
        return (1, 0) if last is None else (max(last.disk.oldest, 1), last.disk.oldest_at)

    def figures(self) -> LogFigures:
        """Return the disk usage of the last run and the totals so far, as metrics."""
        totals = self.totals
        done = LogFigures(
            log_cut_bytes=totals.cut_bytes, log_checkpoints=totals.checkpoints, log_readers_lost=totals.readers_lost
        )
        last = totals.last
        if last is None:
            return done
        return replace(
            done,
            log_bytes=last.disk.segment_bytes,
            log_oldest_seq=last.disk.oldest,
            log_checkpoint_seq=last.disk.checkpoints[-1][0] if last.disk.checkpoints else 0,
            log_checkpoint_bytes=last.disk.checkpoint_bytes,
            log_free_bytes=last.free_bytes,
            log_readers=len(last.readers),
        )

    # -- in the thread -----------------------------------------------------------------------------------------------

    def keep(self, now: int) -> TruncationRun | None:
        """Make a checkpoint if one is due, and remove the segments that may be cut; return None if the broker stops."""
        troubles: list[str] = []
        made: CheckpointInfo | None = None
        waiting = Waiting()
        self._pace.begin()
        try:
            disk = on_disk(self._directory, self._node)
            wanted = self._plan(disk, now)
            newest = disk.checkpoints[-1] if disk.checkpoints else (0, 0)
            closed = disk.find_uncovered(newest[0])
            size = sum(each.size_bytes for each in closed)
            if is_checkpoint_due(size, len(closed), newest[1], is_needed=wanted.needs_checkpoint):
                made = self._checkpoint(now, newest[0], waiting, troubles)
            wanted = self._plan(disk, now)
            if wanted.segments and self._settings.export:
                self._archive(wanted.segments[-1].last, troubles)
                wanted = self._plan(disk, now)
            size = cut(self._directory, self._node, wanted)
            if wanted.is_short and not wanted.held_by:
                newest_bytes = disk.checkpoints[-1][1] if disk.checkpoints else 0
                least = max(_LEAST_SEGMENT_BYTES, self._settings.segment_bytes // _SEGMENT_SHARE, newest_bytes)
                with suppress(LogWriteError):  # a full disk has no space for a new segment
                    self._end_segment(min(least, self._settings.segment_bytes))
            if self.space is not None:
                self.space.hold_reserve()
            return TruncationRun(
                disk=on_disk(self._directory, self._node),
                free_bytes=self._free(),
                plan=wanted,
                cut_bytes=size,
                checkpoint=made,
                absent=tuple(waiting.absent()),
                readers=tuple(self._readers(now)),
                troubles=tuple(troubles),
            )
        except Stopped:
            return None
        except (WhimbrelError, OSError) as error:
            disk = OnDisk(segments=(), open_bytes=0, checkpoints=(), oldest=0)
            last = self.totals.last
            plan = Plan(is_short=True)
            there = disk if last is None else last.disk
            return TruncationRun(disk=there, free_bytes=0, plan=plan, troubles=(*troubles, str(error)))

    def _plan(self, disk: OnDisk, now: int) -> Plan:
        return plan(
            disk.segments,
            other_bytes=disk.open_bytes + disk.checkpoint_bytes,
            free_bytes=self._free(),
            limit=max(cut_limit(self._directory, self._node) or 0, self._limit_in_need()),
            readers=self._readers(now),
            bounds=self._bounds_in_force(),
            now=now,
        )

    def _bounds_in_force(self) -> Bounds:
        """Return the bounds of the log; its bound of the free space is never below the space that publications need."""
        bounds, space = self._bounds, self.space
        if space is None or not bounds.free_bytes:
            return bounds
        return replace(bounds, free_bytes=max(bounds.free_bytes, space.wanted_bytes))

    def _limit_in_need(self) -> int:
        """Return the seq up to which the log may be cut because the disk is nearly full; 0 if it is not full.

        A second checkpoint needs a record that is newer than the first, but no more records are accepted. So the newest
        sound checkpoint suffices if the view, as a second copy, has the same records.
        """
        if self.space is None or self.space.takes_publications:
            return 0
        found, _ = newest_sound(self._directory, self._node)
        if found is None:
            return 0
        view = SqliteStore(self._view, snapshot=True)
        try:
            return found.header.seq if view.applied >= found.header.seq else 0
        finally:
            view.close()

    def _readers(self, now: int) -> list[Reader]:
        readers = read_registered(self._directory, self._node)
        if self._settings.export:
            target = Path(self._settings.export)
            seq = layout.exported_seq(target, self._node)
            readers.append(Reader(name=_ARCHIVE, seq=seq, renewed_at=now))
        return readers

    def _checkpoint(self, now: int, newest: int, waiting: Waiting, troubles: list[str]) -> CheckpointInfo | None:
        """Copy the view (snapshot of the state) to a checkpoint, unless the *newest* one has the same records.

        *waiting* counts the queues of absent sessions. Return None if there is nothing new, or if the copy failed; the
        reason is then added to *troubles*.
        """
        try:
            view = SqliteStore(self._view, snapshot=True)
            try:
                if view.applied <= newest:
                    return None
                row = view.get(("now",))
                header = CheckpointHeader(
                    node=self._node,
                    seq=view.applied,
                    state_at=now if row is None else cbor2.loads(row),
                    made_at=now,
                    salt=secrets.randbits(32),
                )
                return save(self._directory, header, waiting.count_each(view.rows()), pause=self._pace)
            finally:
                view.close()
        except (WhimbrelError, OSError) as error:
            troubles.append(str(error))
            return None

    def _archive(self, last: int, troubles: list[str]) -> None:
        """Export the segments that are to be removed, in a separate process, so that the broker need not load Arrow."""
        target = Path(self._settings.export)
        if layout.exported_seq(target, self._node) >= last:
            return
        command = [sys.executable, "-m", "whimbrel", "log", "export", str(self._directory)]
        command += ["--node", self._node, "--into", str(target)]
        try:
            trouble = self._run(command)
        except OSError as error:
            trouble = str(error)
        if trouble is not None:
            troubles.append(f"the export to {target} failed: {trouble}")

    def _run(self, command: list[str]) -> str | None:
        """Run a long command at low priority; return why it failed, or None.

        It is terminated after an hour, and if the broker stops.
        """
        process = subprocess.Popen(  # noqa: S603 # our own command, no shell
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
        began = time.monotonic()
        while True:
            try:
                _, said = process.communicate(timeout=_LOOK_S)
            except subprocess.TimeoutExpired:
                is_late = time.monotonic() - began > _EXPORT_S
                if is_late or self._pace.is_stopping:
                    process.terminate()
                    process.communicate()
                    if is_late:
                        return f"it took longer than {_EXPORT_S} s"
                    raise Stopped from None
            else:
                return said.strip()[-300:] or f"exit {process.returncode}" if process.returncode else None
