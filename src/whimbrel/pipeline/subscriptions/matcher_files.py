"""Matcher files: packed matchers on this machine's disk, which all workers of the user share through memory maps.

A file is named by the digest of what the matcher is made of (``MatcherInput``). So a worker that needs a matcher that
another worker has packed maps that file, also after a task moved, a batch was repeated or Spark was started again. One
process packs; others that need the same matcher wait for it. If that takes longer than ``WAIT_S``, they pack it, too.
Rule: only files in a folder that no other user can write to are mapped, and only after the checks of ``match``. A file
that is damaged, or that is not what its name says, is removed and packed again.
Rule: a file is written under another name and renamed when it is complete, so a crash leaves no part of a matcher.
Rule: files are evicted by age and by total size, the least recently used first. A file that is mapped stays valid after
that. A reader that does not find a file packs it again.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa

from whimbrel.errors import WhimbrelError
from whimbrel.match.index.damage import CorruptIndexError
from whimbrel.pipeline.subscriptions.versions import LayerBase, PackedVersions, pack_versions

__all__ = [
    "FOLDER",
    "MAX_AGE_S",
    "MAX_BYTES",
    "WAIT_S",
    "MatcherFiles",
    "MatcherFolderError",
    "MatcherInput",
    "Uses",
    "matcher_files",
    "private_folder",
]

FOLDER = "WHIMBREL_MATCHER_FILES"
"""Environment variable: folder in which each user's folder of matchers is made; without it, the temporary folder."""
MAX_BYTES = 4 << 30
"""Size of all files from which on the least recently used ones are evicted, in bytes."""
MAX_AGE_S = 24 * 3600.0
"""Time after its last use after which a file is evicted, in seconds."""
WAIT_S = 60.0
"""Longest time that a process waits for another one to pack a matcher, in seconds."""
_FORMAT = 1
"""Format of the files, part of each digest: raise it when files of one input change."""
_YOUNG_S, _UNFINISHED_S, _SWEEP_S = 60.0, 600.0, 60.0
"""Age below which no file is evicted, age above which an unfinished file is removed, and time between evictions."""
_MATCHER, _UNFINISHED, _HEAD = ".matcher", ".unfinished", ".head"
_ATTEMPTS, _DIGEST_BYTES = 3, 20
_DIGITS = frozenset("0123456789abcdef")


class MatcherFolderError(WhimbrelError):
    """The folder of matcher files could be changed by other users. Reaction: name another one in ``FOLDER``."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.folder = folder

    def __str__(self) -> str:
        return f"{self.folder} must be a folder of this user with the mode 0700; remove it, or set {FOLDER} to another"


class Uses(NamedTuple):
    """Number of matchers that were found as files, and of those that had to be packed."""

    found: int = 0
    packed: int = 0

    @classmethod
    def sum(cls, counts: Iterable[tuple[int, int]]) -> Uses:
        """Return the sum of *counts*."""
        return cls(*map(sum, zip((0, 0), *counts, strict=True)))

    def since(self, before: Uses) -> Uses:
        """Return the difference to an earlier count."""
        return Uses(self.found - before.found, self.packed - before.packed)


@dataclass(frozen=True)
class MatcherInput:
    """Everything that a packed matcher is made of."""

    versions: Any
    """Rows of ``versions``, of one node, in the order of their seqs."""
    over: LayerBase | None = None
    tracks: Mapping[str, Any] | None = None
    """The ``track_arrays`` of devices, if places matter and are not given later."""

    @cached_property
    def digest(self) -> str:
        """Digest of the input and of the format of the files."""
        found = hashlib.blake2b(b"whimbrel matcher %d\n" % _FORMAT, digest_size=_DIGEST_BYTES)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.versions.schema) as writer:
            writer.write_table(self.versions.combine_chunks())
        found.update(sink.getvalue())
        if self.over is not None:
            for text in (self.over.path, *sorted(self.over.sessions)):
                found.update(b"\n%d " % len(text.encode()) + text.encode())
        for name, array in sorted((self.tracks or {}).items()):
            found.update(f"\n{name} {array.dtype} {array.size} ".encode())
            found.update(memoryview(array).cast("B"))
        return found.hexdigest()

    def pack(self, path: Path) -> None:
        """Pack the matcher, and write it to *path*."""
        pack_versions(path, self.versions, over=self.over, tracks=self.tracks, digest=self.digest)


class MatcherFiles:
    """The matchers in one *folder*, which only this user can write to."""

    def __init__(
        self, folder: Path, *, max_bytes: int = MAX_BYTES, max_age_s: float = MAX_AGE_S, wait_s: float = WAIT_S
    ) -> None:
        self._folder, self._max_bytes, self._max_age_s, self._wait_s = folder, max_bytes, max_age_s, wait_s
        self._swept_at = float("-inf")
        self.uses = Uses()
        """Uses by this process; a matcher that the process has mapped already is not counted."""

    def open(self, node: str, given: MatcherInput, known: Sequence[PackedVersions] = ()) -> PackedVersions:
        """Return the matcher of *node* that is made of *given*, mapped from its file, which is packed if necessary.

        *known* are mapped matchers over which the matcher may lie.
        """
        path = self.path(given.digest)
        kept = PackedVersions.last(node)
        if kept is not None and kept.path == str(path):
            return kept
        found = self._map(given.digest, node, known)
        if found is None:
            with self._turn(path):
                found = self._map(given.digest, node, known)  # another process may have packed it
                if found is None:
                    return self._pack(given, node, known)
        self.uses = self.uses._replace(found=self.uses.found + 1)
        return found

    def _pack(self, given: MatcherInput, node: str, known: Sequence[PackedVersions]) -> PackedVersions:
        path = self.path(given.digest)
        for _ in range(_ATTEMPTS):
            unfinished = self._folder / f"{uuid4().hex}{_UNFINISHED}"
            try:
                given.pack(unfinished)
                unfinished.replace(path)
            finally:
                unfinished.unlink(missing_ok=True)
            self.uses = self.uses._replace(packed=self.uses.packed + 1)
            self.evict()
            found = self._map(given.digest, node, known)
            if found is not None:
                return found
        raise CorruptIndexError(str(path), "it was removed or damaged each time after it was packed")

    def leave(self, node: str, given: MatcherInput, path: Path) -> None:
        """Leave the file of a matcher at *path*, a new name in another folder, where eviction does not remove it."""
        self.open(node, given)
        try:
            _link(self.path(given.digest), path)
        except FileNotFoundError:  # this process has mapped the file, and it was evicted since
            given.pack(path)

    def copy(self, found: PackedVersions, folder: Path) -> Path | None:
        """Copy the files of a matcher to *folder*, for other machines; return its path there, None if it was evicted.

        The matcher over which it lies goes with it, under the same name.
        """
        try:
            for each in (found, found.below):
                if each is not None:
                    with suppress(FileExistsError):
                        _link(Path(each.path), folder / Path(each.path).name)
        except FileNotFoundError:
            return None
        return folder / Path(found.path).name

    def find(self, digest: str, node: str) -> PackedVersions | None:
        """Return the matcher of *node* with this *digest*, mapped from its file, or None if there is no valid file."""
        found = self._map(digest, node, ())
        if found is not None:
            self.uses = self.uses._replace(found=self.uses.found + 1)
        return found

    def path(self, digest: str) -> Path:
        """Return the path of the file for a *digest*."""
        return self._folder / f"{digest}{_MATCHER}"

    def _map(self, digest: str, node: str, known: Sequence[PackedVersions]) -> PackedVersions | None:
        """Return the matcher in a file, or None if there is none; a damaged or a foreign file is removed."""
        path = self.path(digest)
        try:
            _check_own(path)
            found = PackedVersions.map(str(path), node, known)
            if found.digest != digest:
                raise CorruptIndexError(str(path), f"made of {found.digest or 'nothing known'}")
            os.utime(path)
        except FileNotFoundError:
            return None
        except CorruptIndexError:
            PackedVersions.forget(node)
            path.unlink(missing_ok=True)
            return None
        return found

    @contextmanager
    def _turn(self, path: Path) -> Iterator[None]:
        """Wait until no other process packs *path*, or *path* exists, or the time limit is over."""
        lock = os.open(
            self._folder / f"lock-{path.name[:2]}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            until_s, pause_s = time.monotonic() + self._wait_s, 0.01
            while not path.exists():
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= until_s:
                        break
                    time.sleep(pause_s)
                    pause_s = min(2 * pause_s, 0.5)
                except OSError:  # a file system without locks
                    break
            yield
        finally:
            os.close(lock)

    # -- the last large matcher of a node ----------------------------------------------------------------------------

    def head(self, name: str) -> str | None:
        """Return the digest that was last set as the head *name*, or None."""
        path = self._head(name)
        try:
            _check_own(path)
            digest = path.read_text("ascii")
            os.utime(path)
        except (FileNotFoundError, CorruptIndexError, ValueError):
            return None
        return digest if _is_digest(digest) else None

    def set_head(self, name: str, digest: str) -> None:
        """Record the matcher with *digest* as the head *name*, for workers that have none yet."""
        unfinished = self._folder / f"{uuid4().hex}{_UNFINISHED}"
        unfinished.write_text(digest, "ascii")
        unfinished.replace(self._head(name))

    def _head(self, name: str) -> Path:
        return self._folder / f"{hashlib.blake2b(name.encode(), digest_size=_DIGEST_BYTES).hexdigest()}{_HEAD}"

    # -- eviction ----------------------------------------------------------------------------------------------------

    def evict(self, *, now_s: float | None = None) -> None:
        """Remove files that were not used for long, and the least recently used ones if all are too large.

        Without *now_s*, do so at most once per ``_SWEEP_S``.
        """
        if now_s is None:
            if time.monotonic() < self._swept_at + _SWEEP_S:
                return
            self._swept_at, now_s = time.monotonic(), time.time()
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        for used_s, size, path in files:
            age_s = now_s - used_s
            limit_s = _UNFINISHED_S if _UNFINISHED in path.name else self._max_age_s
            if age_s > limit_s or (total > self._max_bytes and age_s > _YOUNG_S):
                path.unlink(missing_ok=True)
                total -= size

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Yield the time of the last use, the size and the path of each file that may be evicted."""
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if any(suffix in entry.name for suffix in (_MATCHER, _UNFINISHED, _HEAD)):
                    with suppress(FileNotFoundError):
                        found = entry.stat(follow_symlinks=False)
                        yield found.st_mtime, found.st_size, Path(entry.path)


def _link(source: Path, path: Path) -> None:
    """Make the file *source* also appear at *path*, a new name: by a link, or else by a copy."""
    try:
        path.hardlink_to(source)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError:  # another file system
        unfinished = path.with_name(f"{uuid4().hex}{_UNFINISHED}")
        shutil.copyfile(source, unfinished)
        unfinished.replace(path)


def _is_digest(text: str) -> bool:
    return len(text) == 2 * _DIGEST_BYTES and _DIGITS.issuperset(text)


def _check_own(path: Path) -> None:
    """Raise ``CorruptIndexError`` unless *path* is a file of this user that no other user can write to."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise CorruptIndexError(str(path), "not a file that only this user can write to")


@cache
def matcher_files() -> MatcherFiles:
    """Return the cache of this user's workers on this machine; a process asks the environment once."""
    chosen = os.environ.get(FOLDER)
    if chosen:
        return MatcherFiles(private_folder(Path(chosen)))
    try:
        return MatcherFiles(private_folder(Path(tempfile.gettempdir())))
    except MatcherFolderError:  # another user was first: this process shares its matchers with nobody
        folder = Path(tempfile.mkdtemp(prefix="whimbrel-matchers-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return MatcherFiles(folder)


def private_folder(parent: Path) -> Path:
    """Return this user's folder of matchers in *parent*, made if necessary; raise if others could change it."""
    folder = parent / f"whimbrel-matchers-{os.geteuid()}"
    with suppress(FileExistsError):
        folder.mkdir(0o700, parents=False)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise MatcherFolderError(str(folder))
    return folder
