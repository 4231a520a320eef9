"""Storage: the data folder of a broker, and how its state is restored from it (crash recovery).

``log/`` holds all records and is authoritative. ``view-….sqlite`` is a snapshot of the state that lags a little behind
the log, and ``heartbeat-…`` has the last moment at which the broker was alive. A restart loads the view and replays the
records after it. Without a view that reaches back to the first record of the log, it loads the newest sound checkpoint
(``log.checkpoints``) and replays the records after that; without a checkpoint, it replays the whole log.
Rule: missing records are always reported. The first seq of a log that was cut is above 1. If neither view nor
checkpoint reaches that record, the broker does not start, unless the operator accepts the loss (``--accept-loss``).
Rule: data of a newer version of Whimbrel is refused, and nothing is changed.
Rule: a view is never removed: one that cannot be used is renamed.
Rule: only the owner may read the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypeVar

from whimbrel.broker.settings.config import Config
from whimbrel.broker.settings.fields import ConfigError
from whimbrel.broker.shell.disk.heartbeat import Heartbeat, Resumption, beat_of, resumption
from whimbrel.broker.shell.disk.history_reader import HistoryReader
from whimbrel.broker.shell.disk.log_truncator import LogTruncator
from whimbrel.broker.shell.disk.space import DiskSpace
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.routes import Routes
from whimbrel.errors import WhimbrelError
from whimbrel.hold.private import client_of
from whimbrel.hold.rows import Key
from whimbrel.hold.store.interface import CorruptStoreError
from whimbrel.hold.store.sqlite import SqliteStore
from whimbrel.log import layout
from whimbrel.log.backup.manifest import MOUNTED
from whimbrel.log.checkpoints.folder import newest_sound, opened, refuse_newer
from whimbrel.log.errors import MissingRecordsError
from whimbrel.log.files import make_folder, put, tighten
from whimbrel.log.incarnation import renew_incarnation
from whimbrel.log.reader import read
from whimbrel.log.writer import LogWriter, Recovery
from whimbrel.model.facts import SessionChange, SessionChanged

__all__ = ["AbandonedError", "Restored", "Storage"]

_T = TypeVar("_T")

_MANY = 1_000
_SEGMENT_US = 86_400_000_000
"""Most time that a segment may span: a day, so that even a slowly growing log can be cut by age to the day."""
_PROGRESS = 100_000
_FILES_OF_A_VIEW = ("", "-wal", "-shm")


class AbandonedError(WhimbrelError):
    """The broker was told to stop before it had restored everything. Reaction: stop."""

    def __str__(self) -> str:
        return "the broker was told to stop before everything was restored"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Result of restoring the data folder: how the state was recovered, and which records are missing."""

    recovery: Recovery
    applied: int
    """The last seq that the view had."""
    replayed: int
    """Number of records replayed from the log."""
    time: Resumption
    rebuilt: str | None
    """Why the view could not be used; None if it could."""
    unwritten: str | None = None
    """Why the view could not be written after the replay; None if it was, or did not have to be."""
    lost: str | None = None
    """The missing records, and why, if the operator accepted the loss."""
    checkpoint: int = 0
    """Seq of the checkpoint that was loaded in place of the view; 0 if none was needed."""
    unsound: tuple[str, ...] = ()
    """Why newer checkpoints could not be used, one text for each."""


class Storage:
    """Data folder of a node: log, snapshot, heartbeat and checkpoints; *accepts_loss*: start if records are missing."""

    def __init__(self, config: Config, *, accepts_loss: bool = False) -> None:
        self._node, self._accepts_loss = config.node.name, accepts_loss
        self.folder = Path(config.node.data)
        self.log_folder = self.folder / "log"
        self.log = LogWriter(
            self.log_folder, self._node, segment_bytes=config.log.segment_bytes, segment_us=_SEGMENT_US
        )
        self.heartbeat = Heartbeat(self.folder / f"heartbeat-{self._node}")
        self._view_path = self.folder / f"view-{self._node}.sqlite"
        self._mounted_path = self.folder / f"{MOUNTED}-{self._node}"
        self.space = DiskSpace(self.folder, f".reserve-{self._node}")
        self.keeper = LogTruncator(
            self.log_folder,
            self._node,
            self._view_path,
            config.log,
            end_segment=self.log.end_segment,
            space=self.space,
        )
        """Makes checkpoints of the view, and removes old segments of the log."""
        self.history = HistoryReader(self.log_folder, self._node)
        """Reads old publications from the log for clients that subscribe with ``since``."""
        self._store: SqliteStore | None = None
        self._recovery: Recovery | None = None
        self._is_abandoned = False
        self._rebuilt: str | None = None
        self._lost: str | None = None
        self._is_gap = False
        """Whether records between the view and the first record of the log are missing, and the loss is accepted."""
        self._unsound: list[str] = []
        self._begun_with = 0
        """Seq of the checkpoint that was loaded in place of the view; 0 if no checkpoint was loaded."""

    def open(self, routes: Routes, *, progress: Callable[[int], None] = lambda _: None) -> tuple[BrokerState, Restored]:
        """Open log and view (snapshot of the state), and return the state that they record."""
        self.open_files()
        return self.restore(routes, progress=progress)

    def open_files(self) -> None:
        """Lock the folder and open log and view (snapshot of the state); raise if they cannot be used.

        A folder that cannot be served is refused here, before any port is opened. ``restore`` then reads the state.
        """
        self._refuse_new_name()
        make_folder(self.folder)
        tighten(self.folder)
        with self._closed_on_error():
            self._recovery = self.log.open(given_by=self._applied_by_view, accepts_loss=self._accepts_loss)
            layout.expect_receipts(self.log_folder)
            self.space.hold_reserve()
            self._begin_with_checkpoint()
            self._check_reach(self._recovery)
            if self._store is None:
                self._store = self._new_view()

    def restore(
        self, routes: Routes, *, progress: Callable[[int], None] = lambda _: None
    ) -> tuple[BrokerState, Restored]:
        """Return the state that log and view (its snapshot) record; this may take long; any thread may call it."""
        with self._closed_on_error():
            return self._restore(routes, progress)

    @property
    def has_mounted_ids(self) -> bool:
        """Whether the sessions in this folder were moved to their mount points (see ``SessionMoves``)."""
        return self._mounted_path.exists()

    def note_mounted_ids(self) -> None:
        """Create the file that marks the sessions as moved; the log already has the records of the move."""
        put(self._mounted_path, b"client identifiers are mounted\n")

    def abandon(self) -> None:
        """Make a ``restore`` that runs in another thread end with ``AbandonedError``."""
        self._is_abandoned = True

    def _unless_abandoned(self, found: Iterable[_T]) -> Iterator[_T]:
        for each in found:
            if self._is_abandoned:
                raise AbandonedError
            yield each

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _refuse_new_name(self) -> None:
        """Raise if the folder belongs to another node: under a new name the broker would silently start empty."""
        others = sorted(each.stem.removeprefix("view-") for each in self.folder.glob("view-*.sqlite"))
        if others and self._node not in others and not layout.segments(self.log_folder, self._node):
            allowed = " or ".join(f"'{each}'" for each in others) + f", whose data is in {self.folder}"
            advice = "keep the name, or give the new node a directory of its own (node.data)"
            raise ConfigError("", "node.name", self._node, allowed, advice)

    def _restore(self, routes: Routes, progress: Callable[[int], None]) -> tuple[BrokerState, Restored]:
        recovery = self._recovery
        assert self._store is not None
        assert recovery is not None
        applied = max(self._store.applied, 0)
        state = BrokerState.restore(self._node, self._unless_abandoned(self._store.rows()), routes=routes)
        replayed = 0
        for fact in self._unless_abandoned(read(self.log_folder, self._node, first=applied + 1)):
            state.apply(fact)
            replayed += 1
            if replayed % _PROGRESS == 0:
                progress(replayed)
        unwritten: str | None = None
        if recovery.missing_to:
            # From here on only the view has the state of the lost records: it must be stored before the log continues.
            self._store.commit(recovery.missing_to, *state.view.changes())
            self.log.begin_at(recovery.missing_to + 1)
        if self._is_gap:
            renew_incarnation(self.log_folder, self._node)
            self._end_sessions(state)
        elif replayed > _MANY and not recovery.missing_to:
            unwritten = self._write_down(recovery.last_seq, state)
        beat = self.heartbeat.read()
        time = resumption(beat, self.log.last_at, beat_of(0))
        if beat is None:
            with suppress(OSError):  # the heartbeat writer reports the error when it fails, too
                self.heartbeat.write(beat_of(time.now))
        return state, Restored(
            recovery=recovery,
            applied=applied,
            replayed=replayed,
            time=time,
            rebuilt=self._rebuilt,
            unwritten=unwritten,
            lost=self._lost,
            checkpoint=self._begun_with,
            unsound=tuple(self._unsound),
        )

    # -- missing records ---------------------------------------------------------------------------------------------

    def _applied_by_view(self) -> tuple[int, str]:
        """Open the view (snapshot of the state), if it can be used; return its last seq, which was durable.

        The second part of the result names the view, for error texts.
        """
        refuse_newer(self.log_folder, self._node)
        try:
            # If a loss is accepted, only the view has the state of the lost records, so each commit is fsynced.
            self._store = SqliteStore(self._view_path, is_synced=self._accepts_loss)
        except CorruptStoreError as error:
            self._rebuilt = str(error)
            return 0, "nothing"
        return self._store.applied, f"its view, {self._view_path.name},"

    def _begin_with_checkpoint(self) -> None:
        """Load the newest sound checkpoint into the view (snapshot) if there is none, or the log was cut beyond it."""
        applied = 0 if self._store is None else max(self._store.applied, 0)
        begin = layout.segments(self.log_folder, self._node)[0][0]
        if applied and begin <= applied + 1:
            return
        found, self._unsound = newest_sound(self.log_folder, self._node)
        if found is None or found.header.seq <= applied:
            return
        if self._store is None:
            self._store = self._new_view()
        self._begun_with = found.header.seq
        with opened(found.path, self._node, self._begun_with) as reader:
            self._store.load(self._begun_with, reader.rows())

    def _check_reach(self, recovery: Recovery) -> None:
        """Raise if records between view (snapshot) and log are missing; if the loss is accepted, close the view."""
        if recovery.missing_to:
            self._lost = f"records {recovery.last_seq + 1} to {recovery.missing_to}, which were after the log's end"
        applied = 0 if self._store is None else max(self._store.applied, 0)
        begin = layout.segments(self.log_folder, self._node)[0][0]
        if begin <= applied + 1:
            return
        if self._rebuilt is not None:
            reason = f"they were cut from the log, and its view cannot be used: {self._rebuilt}"
        elif applied:
            reason = f"the log of {self._node} begins with {begin}, and its view, {self._view_path.name}, ends before"
        else:
            reason = f"they were cut from the log of {self._node}, and it has no view, {self._view_path.name}"
        if self._unsound:
            reason += f", and no checkpoint is sound: {'; '.join(self._unsound)}"
        if not self._accepts_loss:
            advice = "restore the view, or start with --accept-loss: all sessions end, and clients are told so"
            raise MissingRecordsError(self.log_folder, applied + 1, begin - 1, reason, advice)
        self._lost, self._is_gap = f"records {applied + 1} to {begin - 1}: {reason}", True
        if self._store is not None:
            self._store.close()
            self._store = None

    def _end_sessions(self, state: BrokerState) -> None:
        """End all sessions that the remaining records of a cut log mention: the records that created them are lost.

        A client that is told that its session exists would not subscribe again, and a named session (shared by several
        devices) whose creation was cut would be open to every client. The sessions end by log records, so that every
        replay of the log gives the same state.
        """
        assert self._store is not None
        for session in state.hold.sessions():
            fact = SessionChanged(
                node=self._node,
                seq=self.log.next_seq,
                changed_at=self.log.last_at,
                session=session,
                change=SessionChange.DELETED,
                device=client_of(session),
            )
            self.log.append(fact)
            state.apply(fact)
        self._store.commit(self.log.sync(), *state.view.changes())

    def _new_view(self) -> SqliteStore:
        """Rename an existing view (snapshot of the state), and create an empty one."""
        aside = next(path for number in count(1) if not (path := Path(f"{self._view_path}.aside-{number}")).exists())
        for suffix in _FILES_OF_A_VIEW:
            path = Path(f"{self._view_path}{suffix}")
            if path.exists():
                path.replace(f"{aside}{suffix}")
        return SqliteStore(self._view_path, is_synced=self._accepts_loss)

    @property
    def applied(self) -> int:
        """The last seq that the view (snapshot of the state) has; 0 if there is no view."""
        return 0 if self._store is None else max(self._store.applied, 0)

    # -- the view ----------------------------------------------------------------------------------------------------

    def _write_down(self, applied: int, state: BrokerState) -> str | None:
        """Write the view (snapshot) after a long replay; else a broker that is killed often would replay ever more.

        Return why it could not be written, or None: the broker serves clients even if the disk is full.
        """
        try:
            self.write_view(applied, *state.view.changes())
        except WhimbrelError as error:
            return str(error)
        return None

    def write_view(self, applied: int, put: dict[Key, bytes], drop: set[Key]) -> None:
        """Fsync the log, then commit changed rows to the view (snapshot), which has the state up to *applied* then.

        *put* has the new and changed rows, *drop* the keys of the removed ones.
        """
        assert self._store is not None
        self.log.sync()
        self._store.commit(applied, put, drop)

    def replace_view(self, applied: int, rows: dict[Key, bytes]) -> None:
        """Fsync the log, then replace all rows of the view (snapshot) by *rows*, the state up to seq *applied*."""
        assert self._store is not None
        self.log.sync()
        self._store.replace(applied, rows)

    def close(self) -> None:
        """Stop the threads and close all files; delete the reserve file."""
        self.keeper.close()
        self.history.close()
        self.heartbeat.close()
        self.space.give_up_reserve()
        try:
            self.log.close()
        finally:
            if self._store is not None:
                self._store.close()
