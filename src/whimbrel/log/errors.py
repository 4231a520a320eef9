"""Errors of a log on disk: one class per reaction of the operator."""

from __future__ import annotations

from pathlib import Path

from whimbrel.errors import WhimbrelError

__all__ = [
    "CorruptLogError",
    "LogError",
    "LogLockedError",
    "LogWriteError",
    "MissingRecordsError",
    "NewerLogError",
    "NotALogError",
    "ReplacedSegmentError",
]


class LogError(WhimbrelError):
    """Base class of the errors of a log on disk."""


class NotALogError(LogError):
    """The directory holds no log. Reaction: name another directory, or create a log."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class NewerLogError(LogError):
    """A newer version of Whimbrel wrote this file. Reaction: use that version; nothing was changed."""

    def __init__(self, path: Path, found: object, known: int) -> None:
        super().__init__(path, found, known)
        self.path, self.found, self.known = path, found, known

    def __str__(self) -> str:
        return f"{self.path}: written by a newer Whimbrel (format {self.found}); this one reads up to {self.known}"


class CorruptLogError(LogError):
    """Durable bytes of a file differ from those that were written. Reaction: restore the file; nothing was cut."""

    def __init__(self, path: Path, offset: int, reason: str) -> None:
        super().__init__(path, offset, reason)
        self.path, self.offset, self.reason = path, offset, reason

    def __str__(self) -> str:
        return f"{self.path}: damaged at byte {self.offset}: {self.reason}"


class ReplacedSegmentError(LogError):
    """Another segment replaced the one being read. Reaction: find out whose log this is; read from the start."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: it is another segment than the one that was read there before; begin to read it anew"


class MissingRecordsError(LogError):
    """Durable records are missing. Reaction: restore the files, or accept the loss; nothing was changed."""

    def __init__(self, path: Path, first: int, last: int, reason: str, advice: str) -> None:
        super().__init__(path, first, last, reason, advice)
        self.path, self.first, self.last, self.reason, self.advice = path, first, last, reason, advice

    def __str__(self) -> str:
        return f"{self.path}: records {self.first} to {self.last} are missing: {self.reason}; {self.advice}"


class LogWriteError(LogError):
    """A write to disk failed. Reaction: acknowledge none of its facts; make room, or reopen if the error says so."""

    def __init__(self, path: Path, reason: str, advice: str = "") -> None:
        super().__init__(path, reason, advice)
        self.path, self.reason, self.advice = path, reason, advice

    def __str__(self) -> str:
        return f"{self.path}: could not be written: {self.reason}" + (f"; {self.advice}" if self.advice else "")


class LogLockedError(LogError):
    """Another process holds the lock. Reaction: stop that process, or wait."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(path, what)
        self.path, self.what = path, what

    def __str__(self) -> str:
        return f"{self.path}: another process is {self.what}"
