"""The folder of a stream: its plan, what it remembers, how far it is behind the log, its tables.

A stream remembers, for each node, up to which number everything is in the tables (``state``), and writes down which
numbers a batch has before it makes anything of them (``intents``); the store of windows has how far the tables are, by
node. These must agree; what a stream that was killed left half done, it does itself.
Rule: what a stream remembers is looked at in a copy, because a stream that runs is the only one who may open it.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import cbor2

from whimbrel.errors import WhimbrelError
from whimbrel.hold.store.interface import NOTHING_APPLIED
from whimbrel.hold.store.sqlite import SqliteStore
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.doctor.check import Check, Verdict, counted, failed, ok, sized, warning
from whimbrel.pipeline.doctor.logs import Extent, extents

__all__ = ["check_reach", "check_running", "check_state", "check_windows", "examine_stream"]

_WINDOWS = "$windows"
"""The store of what belongs to no node; it has the number of the last batch."""
_REACHED = "reached"
"""Its rows on how far each node is in the tables."""
_ANEW = "start the stream anew: with another --out, or remove all of this one; the log has everything that it needs"
_LOOKS = 3
_OLD_S = 3_600
_SLOW_S = 120
_SMALL_BYTES, _MANY = 1 << 20, 200


Span = tuple[int, int]
"""The first and the last number."""


@dataclass(frozen=True, slots=True)
class _Remembered:
    """What a store says."""

    applied: int
    """The last batch, or, of a node, the last number."""
    reached: Mapping[str, int]
    """By node, the last number that is in the tables; only the windows have it."""


# -- what is decided -------------------------------------------------------------------------------------------------


def check_windows(applied: int | None, intents: Collection[int]) -> Check:
    """Judge the store that has the last batch, beside the batches that were begun."""
    at = NOTHING_APPLIED if applied is None else applied
    last = max(intents, default=NOTHING_APPLIED)
    found = f"batch {at}" if at >= 0 else "no batch yet"
    if last - 1 <= at <= last or not intents:
        under_way = f", batch {last} under way or interrupted" if at < last else ""
        return ok("state", found + under_way, f"batch {last}, or the one before it")
    return failed("state", found, f"batch {last}, or the one before it", _ANEW)


def check_state(node: str, applied: int | None, *, reached: int, span: Span | None) -> Check:
    """Judge what is remembered of *node* (None: nothing).

    *reached* is the number that the tables end with, *span* what the last batch had of the node.
    """
    name, at = f"state of {node}", NOTHING_APPLIED if applied is None else applied
    wanted = f"number {reached}, the tables'"
    is_unfinished = span is not None and at == span[0] - 1  # the stream does that when it goes on
    if at == reached or is_unfinished:
        return ok(name, f"number {at}" if at >= 0 else "nothing yet", wanted)
    found = "missing" if applied is None else f"number {at}"
    told = "it is behind the tables" if at < reached else "it is ahead of the tables"
    return failed(name, f"{found}: {told}", wanted, _ANEW)


def check_reach(node: str, applied: int, extent: Extent) -> Check:
    """Judge how far the tables are behind the log, and whether the log still has what comes next."""
    name, behind = f"lag of {node}", extent.last - applied
    if applied >= 0 and behind > 0 and extent.first > applied + 1:
        found = f"the log begins with number {extent.first}, the tables end with {applied}"
        remedy = f"{_ANEW.partition(';')[0]}; keep more days of the log, or run the stream more often"
        return failed(name, found, f"number {applied + 1}, which is next", remedy)
    if behind < 0:
        found = f"the log ends with number {extent.last}, the tables with {applied}"
        return failed(name, found, "the log that the stream has read", "name the log of this stream; " + _ANEW)
    return ok(name, f"{counted(behind, 'number')} behind the log")


def check_running(*, is_running: bool, behind: int, last_batch_s: float) -> Check:
    """Judge whether the stream does its work: *behind* has how many numbers wait, *last_batch_s* when it did any."""
    waiting = f"{counted(behind, 'number')} behind the log"
    if behind == 0 or (is_running and last_batch_s < _SLOW_S):
        return ok("stream", f"{'running' if is_running else 'not running'}, {waiting}")
    if not is_running:
        remedy = (
            "start it: whimbrel pipeline run --log DIR --out DIR --continuous, or --available-now from time to time"
        )
        return warning("stream", f"not running, {waiting}", "one that runs, or nothing that is new", remedy)
    found = f"running, {waiting}, and its last batch was {last_batch_s:,.0f} s ago"
    remedy = "look at what the command prints; give it more cores, or a smaller --facts-per-batch if memory is short"
    return warning("stream", found, f"a batch in the last {_SLOW_S} s", remedy)


# -- what is read ----------------------------------------------------------------------------------------------------


def examine_stream(out: Path, log: Path | None, *, now: float) -> list[Check]:
    """Look at the stream that writes to *out*, if there is one; *now* in seconds tells what is left over."""
    folder = out / "_stream"
    if not folder.is_dir():
        return [ok("stream", "none has begun here"), *_tables(out)]
    checks = [_plan(folder / "plan.json")]
    found: list[Check] = []
    for _ in range(_LOOKS):  # a stream that runs moves on between two looks
        found = _agreement(folder, log)
        if all(check.verdict is Verdict.OK for check in found):
            break
    if log is not None:
        checks.append(_running(folder, log, now))
    return [*checks, *found, *_leftovers(out, now), *_tables(out)]


def _running(folder: Path, log: Path, now: float) -> Check:
    """Look whether a stream holds its lock, and how much of the log waits for it."""
    behind = 0
    try:
        there = extents(log)[0]
        for node, extent in there.items():
            path = folder / "state" / f"{node}.sqlite"
            applied = _remembered(path).applied if path.exists() else extent.first - 1
            behind += max(0, extent.last - max(applied, extent.first - 1))
    except (OSError, ValueError, sqlite3.Error, WhimbrelError):  # said by the checks of these
        behind = 0
    batches = [_modified(path, 0) for path in (folder / "intents").glob("*.json")]  # one is written as a batch begins
    return check_running(
        is_running=_is_locked(folder), behind=behind, last_batch_s=max(0.0, now - max(batches, default=0.0))
    )


def _is_locked(folder: Path) -> bool:
    """Tell whether a stream keeps this folder: a shared lock is refused while somebody has the other kind."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _plan(path: Path) -> Check:
    wanted = "a plan that this version can read"
    known = _known_format()
    try:
        plan = json.loads(path.read_bytes())
        version, tables = plan["format"], ", ".join(plan["tables"])
    except FileNotFoundError:
        return failed("plan", f"{path}: missing", wanted, _ANEW)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return failed("plan", f"{path}: no plan of a stream", wanted, _ANEW)
    if known is not None and version != known:
        remedy = "use the Whimbrel that began the stream, or begin a new one in another folder"
        return failed("plan", f"format {version}", f"format {known}", remedy)
    return ok("plan", tables, wanted)


def _known_format() -> int | None:
    try:
        from whimbrel.pipeline.plans import FORMAT  # it loads pyspark, which may be missing
    except (ImportError, WhimbrelError):
        return None
    return FORMAT


def _intents(folder: Path) -> dict[int, dict[str, Span]]:
    """Return, by batch, which numbers it has; raise ValueError if that cannot be read."""
    found: dict[int, dict[str, Span]] = {}
    for path in folder.glob("*.json"):
        spans = json.loads(path.read_bytes())
        found[int(path.stem)] = {node: (int(first), int(last)) for node, (first, last) in spans.items()}
    return found


def _agreement(folder: Path, log: Path | None) -> list[Check]:
    try:
        intents = _intents(folder / "intents")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return [failed("intents", str(error), "what the stream wrote, whole", _ANEW)]
    found: dict[str, _Remembered] = {}
    for path in sorted((folder / "state").glob("*.sqlite")):
        try:
            found[path.stem] = _remembered(path)
        except (OSError, ValueError, sqlite3.Error, WhimbrelError) as error:
            return [failed(f"state of {path.stem}", str(error), "a store that can be read", _ANEW)]
    windows = found.pop(_WINDOWS, None)
    applied = {node: each.applied for node, each in found.items()}
    reached = {} if windows is None else windows.reached
    spans = intents.get(NOTHING_APPLIED if windows is None else windows.applied, {})
    checks = [check_windows(None if windows is None else windows.applied, intents)]
    for node in sorted({*reached, *applied, *spans}):
        end = reached.get(node, NOTHING_APPLIED)
        checks.append(check_state(node, applied.get(node), reached=end, span=spans.get(node)))
    return checks + (_reach(log, applied) if log is not None else [])


def _reach(log: Path, applied: Mapping[str, int]) -> list[Check]:
    try:
        there = extents(log)[0]
    except (OSError, WhimbrelError):  # said by the check of the log
        return []
    checks = [check_reach(node, applied.get(node, NOTHING_APPLIED), extent) for node, extent in there.items()]
    for node in sorted(applied.keys() - there.keys()):
        if applied[node] >= 0:
            remedy = "name the log of this stream"
            checks.append(failed(f"lag of {node}", "the log has no such node", "the log that it has read", remedy))
    return checks


def _remembered(path: Path) -> _Remembered:
    """Return what a store says, which is checked on the way; raise ValueError if it cannot be understood."""
    with tempfile.TemporaryDirectory(prefix="whimbrel-doctor-") as scratch:
        copy = Path(scratch) / path.name
        with (
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as original,
            closing(sqlite3.connect(copy)) as made,
        ):
            original.backup(made)
        store = SqliteStore(copy)
        try:
            reached = {str(key[1]): int(cbor2.loads(value)) for key, value in store.rows() if key[0] == _REACHED}
            return _Remembered(store.applied, reached)
        except (cbor2.CBORDecodeError, TypeError) as error:
            raise ValueError(f"no number of a node: {error}") from error
        finally:
            store.close()


def _leftovers(out: Path, now: float) -> list[Check]:
    """Tell what interrupted streams left; what is young may belong to one that runs."""
    places = [*out.glob("_stream/*.new")]
    old = [path for path in places if now - _modified(path, now) > _OLD_S]
    if not old:
        return [ok("leftovers", "none")]
    remedy = "none needed: the next start of the stream removes them"
    return [warning("leftovers", f"{counted(len(old), 'file')} of a stream that was interrupted", "none", remedy)]


def _modified(path: Path, now: float) -> float:
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:  # a stream that runs has just removed it
        return now


def _tables(out: Path) -> Iterator[Check]:
    """Tell of each table how many files it has; a reader opens all of them."""
    try:
        from deltalake.exceptions import DeltaError

        from whimbrel.pipeline.files.delta import check_folder, data_files
    except (ImportError, WhimbrelError):  # said by the check of the packages
        return
    folders = [path for path in out.iterdir() if path.is_dir() and path.name in TABLES] if out.is_dir() else []
    for folder in sorted(folders):
        try:
            check_folder(out, folder.name)
            sizes = [path.stat().st_size for path in data_files(out, folder.name)]
        except (OSError, WhimbrelError, DeltaError) as error:
            yield failed(f"table {folder.name}", str(error).partition("\n")[0], "a Delta table, whole", _ANEW)
            continue
        found = f"{counted(len(sizes), 'file')}, {sized(sum(sizes))}"
        small = sum(1 for size in sizes if size < _SMALL_BYTES)
        name, wanted = f"table {folder.name}", f"fewer than {_MANY} small files"
        if small >= _MANY:
            remedy = "let the stream run on: it puts small files together; a longer --every makes fewer"
            yield warning(name, f"{found}; {small:,} of them are small", wanted, remedy)
        else:
            yield ok(name, found, wanted)
