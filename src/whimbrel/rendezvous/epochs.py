"""The file in which a controller keeps the highest epoch of each group: a restart accepts no revoked token (2.3).

Rule: on disk first. ``keep`` returns when the epoch is fsynced; only then does anything follow from the proof.
Rule: one line per epoch, the newest last; a torn line after a crash is ignored. When the file has twice as many lines
as there are groups, a new file is written and replaces it atomically.
Rule: group keys are public, but they would show which groups meet here: the file is readable by its owner only.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from pathlib import Path

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.model.bounds import whole
from whimbrel.rendezvous.events import KEY_BYTES, GroupKey
from whimbrel.rendezvous.tokens import MAX_EPOCH

__all__ = ["EpochFile"]

_LINE = re.compile(rf"([0-9a-f]{{{2 * KEY_BYTES}}}) ([0-9]{{1,10}})")


class EpochFile:
    """The epochs in *path*, of at most *capacity* groups; the file is made at the first ``keep``."""

    def __init__(self, path: Path, *, capacity: int = 4_096) -> None:
        self._path, self._capacity = path, whole("capacity", capacity, 1, 1_000_000)
        self._epochs: OrderedDict[GroupKey, int] = OrderedDict()
        self._lines = 0
        self._is_torn = False
        self._load()

    @property
    def epochs(self) -> dict[GroupKey, int]:
        """The highest epoch of each group; the one that rose last is last."""
        return dict(self._epochs)

    def keep(self, group: GroupKey, epoch: int) -> None:
        """Store *epoch* as the highest of *group*, unless a higher one is known."""
        if not self._set(group, epoch):
            return
        if self._lines >= 2 * self._capacity or self._is_torn:
            self._write_anew()
        else:
            self._append(_line(group, epoch))

    def _set(self, group: GroupKey, epoch: int) -> bool:
        if epoch <= self._epochs.get(group, -1):
            return False
        self._epochs[group] = epoch
        self._epochs.move_to_end(group)
        if len(self._epochs) > self._capacity:
            self._epochs.popitem(last=False)
        return True

    def _load(self) -> None:
        if not self._path.exists():
            return
        *lines, rest = self._path.read_text(encoding="ascii", errors="replace").split("\n")
        self._lines, self._is_torn = len(lines), bool(rest)
        for number, line in enumerate(lines, 1):
            found = _LINE.fullmatch(line)
            if found is None or int(found[2]) > MAX_EPOCH:
                where, allowed = f"line {number} of {self._path}", "the public key of a group, a space and its epoch"
                raise InvalidValueError(where, Phrase(f"{len(line)} characters"), allowed)
            self._set(GroupKey(bytes.fromhex(found[1])), int(found[2]))

    def _append(self, line: str) -> None:
        is_new = not self._path.exists()
        with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as stream:
            stream.write(line.encode())
            stream.flush()
            os.fsync(stream.fileno())
        self._lines += 1
        if is_new:
            _sync_folder(self._path.parent)

    def _write_anew(self) -> None:
        beside = self._path.with_name(self._path.name + ".new")
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
            stream.write("".join(_line(group, epoch) for group, epoch in self._epochs.items()).encode())
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(self._path)
        _sync_folder(self._path.parent)
        self._lines, self._is_torn = len(self._epochs), False


def _line(group: GroupKey, epoch: int) -> str:
    return f"{group.hex()} {epoch}\n"


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
