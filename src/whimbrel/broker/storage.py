"""Storage: a broker's folder, and how its state comes back from it.

``log/`` has the truth, ``view-….sqlite`` a view of it that lags a little behind. A restart is the view and the tail of
the log; without a view, or with one that cannot be used, it is the whole log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from whimbrel.broker.config import Config
from whimbrel.broker.routes import Routes
from whimbrel.broker.state import BrokerState
from whimbrel.errors import WhimbrelError
from whimbrel.hold.rows import Key
from whimbrel.hold.store.interface import CorruptStoreError, NewerStoreError
from whimbrel.hold.store.sqlite import SqliteStore
from whimbrel.log.reader import read
from whimbrel.log.writer import LogWriter, Recovery

__all__ = ["Restored", "Storage"]

_MANY = 1_000
_PROGRESS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What was found."""

    recovery: Recovery
    applied: int
    """How far the view was."""
    replayed: int
    rebuilt: str | None
    """Why the view could not be used, if it could not."""
    unwritten: str | None = None
    """Why it could not be brought up to date; there is none to follow the log then, until the next start."""


class Storage:
    """The log and the view of a node."""

    def __init__(self, config: Config) -> None:
        self._node = config.node.name
        self.folder = Path(config.node.data)
        self.log_folder = self.folder / "log"
        self.log = LogWriter(self.log_folder, self._node, segment_bytes=config.log.segment_bytes)
        self._view_path = self.folder / f"view-{self._node}.sqlite"
        self._store: SqliteStore | None = None

    def open(self, routes: Routes, *, progress: Callable[[int], None] = lambda _: None) -> tuple[BrokerState, Restored]:
        """Open both and return the state they record."""
        recovery = self.log.open()
        rebuilt = self._open_view(recovery.last_seq)
        assert self._store is not None
        applied = max(self._store.applied, 0)
        state = BrokerState.restore(self._node, self._store.rows(), routes=routes)
        replayed = 0
        for fact in read(self.log_folder, self._node, first=applied + 1):
            state.replay(fact)
            replayed += 1
            if replayed % _PROGRESS == 0:
                progress(replayed)
        unwritten = self._write_down(recovery.last_seq, state) if replayed > _MANY else None
        return state, Restored(
            recovery=recovery, applied=applied, replayed=replayed, rebuilt=rebuilt, unwritten=unwritten
        )

    def _write_down(self, applied: int, state: BrokerState) -> str | None:
        """Bring the view to the end of a long replay: a broker that is killed often must not replay more each time.

        Return why it could not be: a full disk is no reason not to serve what is there.
        """
        try:
            self.write_view(applied, *state.changes())
        except WhimbrelError as error:
            return str(error)
        return None

    def _open_view(self, last_seq: int) -> str | None:
        try:
            self._store = SqliteStore(self._view_path)
            if self._store.applied <= last_seq:
                return None
            reason = f"it was at {self._store.applied} and the log ends at {last_seq}"
            self._store.close()
        except (CorruptStoreError, NewerStoreError) as error:
            reason = str(error)
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self._view_path}{suffix}").unlink(missing_ok=True)
        self._store = SqliteStore(self._view_path)
        return reason

    def write_view(self, applied: int, put: dict[Key, bytes], drop: set[Key]) -> None:
        """Bring the view to *applied*, once the log has everything for certain that the rows may know of."""
        assert self._store is not None
        self.log.sync()
        self._store.commit(applied, put, drop)

    def close(self) -> None:
        """Let go of both."""
        try:
            self.log.close()
        finally:
            if self._store is not None:
                self._store.close()
