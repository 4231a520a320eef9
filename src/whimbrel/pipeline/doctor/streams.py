"""Checks of a stream's folder: its plan, the record of its last batch, its checkpoint, its lag, and its tables.

The checkpoint has the state of a stream, the tables have its output, and the record of the last batch links the two
(``batch_record``). These must agree. A batch that was interrupted is not a problem: the next start finishes
it, or makes it again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from whimbrel.errors import WhimbrelError
from whimbrel.hold.store.interface import NOTHING_APPLIED
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.doctor.check import Check, Verdict, failure, ok, warning, with_noun, with_unit
from whimbrel.pipeline.doctor.logs import Extent, extents
from whimbrel.pipeline.stream.state.batch_record import (
    BatchRecord,
    LostStateError,
    NodeRecord,
    OtherLogError,
    check_same_log,
)
from whimbrel.pipeline.stream.state.identity import StreamIdentity
from whimbrel.pipeline.stream.state.objects import live_objects

__all__ = ["check_checkpoint", "check_reach", "check_running", "check_table", "examine_stream"]

_ANEW = "start the stream anew: with another --out, or remove all of this one; the log has everything that it needs"
_LOOKS = 3
_OLD_S = 3_600
_SLOW_S = 120
_SMALL_BYTES, _MANY = 1 << 20, 200


# -- decisions -------------------------------------------------------------------------------------------------------


def check_checkpoint(record: BatchRecord | None, lost: str | None) -> Check:
    """Return a failed check if the state that *record* names is not whole; *lost* says what is missing, if anything."""
    found = "no batch yet" if record is None else f"batch {record.batch}"
    if lost is not None:
        return failure("checkpoint", f"{found}: {lost}", "the state after the last batch, whole", _ANEW)
    if record is not None and not record.is_done:
        found += ", under way or interrupted"
    return ok("checkpoint", found)


def check_table(table: str, last_batch: int, record: BatchRecord) -> Check | None:
    """Return a failed check if *last_batch*, the last that changed the table, contradicts *record*; else None."""
    least = record.written.get(table, -1)
    if least <= last_batch <= record.batch:
        return None
    told = "it is behind what is recorded" if last_batch < least else "it is ahead of what is recorded"
    wanted = f"batch {least}" if last_batch < least else f"batch {record.batch} at most"
    return failure(f"batches of {table}", f"batch {last_batch}: {told}", wanted, _ANEW)


def check_reach(node: str, applied: int, extent: Extent) -> Check:
    """Check how many facts of the log are not in the tables, and whether the log still has the next seq to read."""
    name, behind = f"lag of {node}", extent.last - applied
    if applied >= 0 and behind > 0 and extent.first > applied + 1:
        found = f"the log begins with number {extent.first}, the tables end with {applied}"
        remedy = f"{_ANEW.partition(';')[0]}; keep more days of the log, or run the stream more often"
        return failure(name, found, f"number {applied + 1}, which is next", remedy)
    if behind < 0:
        found = f"the log ends with number {extent.last}, the tables with {applied}"
        return failure(name, found, "the log that the stream has read", "name the log of this stream; " + _ANEW)
    return ok(name, _lag(behind))


def _lag(behind: int) -> str:
    return f"{with_noun(behind, 'log record')} behind" if behind else "up to date"


def check_running(*, is_running: bool, behind: int, last_batch_s: float, age_s: float = 0.0) -> Check:
    """Check whether the stream keeps up with the log.

    *behind* is the number of seqs that are not in the tables yet. The last batch was *last_batch_s* seconds ago.
    *age_s* is the age of that batch's newest fact when the batch was made; it is small if the stream keeps up.
    """
    waiting = _lag(behind)
    if behind and is_running and last_batch_s < _SLOW_S <= age_s:
        found = f"running, and lags: {waiting}, and what its last batch had was {age_s:,.0f} s old"
        remedy = "wait, if it has just begun; else give it more cores, or spread the log over more nodes"
        return warning("stream", found, f"facts that are younger than {_SLOW_S} s in a batch", remedy)
    if behind == 0 or (is_running and last_batch_s < _SLOW_S):
        return ok("stream", f"{'running' if is_running else 'not running'}, {waiting}")
    if not is_running:
        remedy = (
            "start it: whimbrel pipeline run --log DIR --out DIR --continuous, or --available-now from time to time"
        )
        return warning("stream", f"not running, {waiting}", "one that runs, or nothing that is new", remedy)
    found = f"running, and stands still: {waiting}, and its last batch was {last_batch_s:,.0f} s ago"
    remedy = "look at what the command prints; give it more cores, or a smaller --facts-per-batch if memory is short"
    return warning("stream", found, f"a batch in the last {_SLOW_S} s", remedy)


# -- reading the folder ----------------------------------------------------------------------------------------------


def examine_stream(out: Path, log: Path | None, *, now: float) -> list[Check]:
    """Check the stream that writes to *out*, if there is one; *now* is the time in seconds."""
    folder = out / "_stream"
    if not folder.is_dir():
        return [ok("stream", "none has begun here"), *_tables(out)]
    checks = [_plan(folder / "plan.json")]
    try:
        record = BatchRecord.read(folder / "batch.json")
    except (OSError, WhimbrelError) as error:
        return [*checks, failure("batch", str(error), "what the stream wrote, whole", _ANEW), *_tables(out)]
    if log is not None:
        checks.append(_running(folder, record, log, now))
    found: list[Check] = []
    for _ in range(_LOOKS):  # a running stream may change its files between two reads
        found = _agreement(out)
        if all(check.verdict is Verdict.OK for check in found):
            break
    reach = [] if log is None else [*_sameness(log, record), *_reach(log, _applied_seqs(record))]
    return [*checks, *found, *reach, *_leftovers(out, now), *_tables(out)]


def _applied_seqs(record: BatchRecord | None) -> Mapping[str, int]:
    return {} if record is None else {node: each.applied for node, each in record.nodes.items()}


def _running(folder: Path, record: BatchRecord | None, log: Path, now: float) -> Check:
    """Check whether a stream holds the folder's lock, and how many seqs of the log wait for it."""
    applied, behind = _applied_seqs(record), 0
    try:
        for node, extent in extents(log)[0].items():
            behind += max(0, extent.last - max(applied.get(node, NOTHING_APPLIED), extent.first - 1))
    except (OSError, ValueError, WhimbrelError):  # the check of the log reports it
        behind = 0
    last_batch_s = now - _mtime(folder / "batch.json", 0)  # written whenever a batch is committed
    times = [] if record is None else [each.last_at for each in record.nodes.values() if each.last_at is not None]
    age_s = (record.at - max(times)) / 1e6 if record is not None and times else 0.0
    return check_running(is_running=_is_locked(folder), behind=behind, last_batch_s=max(0.0, last_batch_s), age_s=age_s)


def _is_locked(folder: Path) -> bool:
    """Return whether a stream runs on this folder: its exclusive lock makes our shared lock fail."""
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
    known = _known_formats()
    try:
        plan = json.loads(path.read_bytes())
        version, tables = plan["format"], ", ".join(plan["tables"])
    except FileNotFoundError:
        return failure("plan", f"{path}: missing", wanted, _ANEW)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return failure("plan", f"{path}: no plan of a stream", wanted, _ANEW)
    if known is not None and version not in known:
        remedy = "use the Whimbrel that began the stream, or begin a new one in another folder"
        return failure("plan", f"format {version}", f"format {' or '.join(map(str, sorted(known)))}", remedy)
    return ok("plan", tables, wanted)


def _known_formats() -> frozenset[int] | None:
    try:
        from whimbrel.pipeline.plans import READABLE  # imports pyspark, which may be missing
    except (ImportError, WhimbrelError):
        return None
    return READABLE


def _agreement(out: Path) -> list[Check]:
    """Compare the stream's record of its last batch, the state in its checkpoint, and the tables.

    A running stream changes them one after the other.
    """
    folder = out / "_stream"
    try:
        record = BatchRecord.read(folder / "batch.json")
        lost = None if record is None else _lost_state(folder, record)
    except (OSError, ValueError, KeyError, TypeError, WhimbrelError) as error:
        return [failure("checkpoint", str(error), "what the stream wrote, whole", _ANEW)]
    checks = [check_checkpoint(record, lost)]
    try:
        from deltalake.exceptions import DeltaError

        from whimbrel.pipeline.files.delta import DeltaOutput
    except (ImportError, WhimbrelError):  # the check of the packages reports it
        return checks
    for table in () if record is None else record.written:
        try:
            found = None if record is None else check_table(table, DeltaOutput(out, table).last_batch(), record)
        except (OSError, WhimbrelError, DeltaError):  # the check of the table reports it
            continue
        if found is not None:
            checks.append(found)
    return checks


def _lost_state(folder: Path, record: BatchRecord) -> str | None:
    """Describe the missing part of the state that *record* names; return None if the state is whole."""
    identity = StreamIdentity.read(folder)
    if identity is None:
        return "stream.json is missing"
    if record.is_of_spark:  # the next start reads it, and says if it cannot
        return None
    try:
        live_objects(identity.objects(folder), record.objects)
    except LostStateError as error:
        return str(error.found)
    return None


def _reach(log: Path, applied: Mapping[str, int]) -> list[Check]:
    try:
        there = extents(log)[0]
    except (OSError, WhimbrelError):  # the check of the log reports it
        return []
    checks = [check_reach(node, applied.get(node, NOTHING_APPLIED), extent) for node, extent in there.items()]
    for node in sorted(applied.keys() - there.keys()):
        if applied[node] >= 0:
            remedy = "name the log of this stream"
            checks.append(failure(f"lag of {node}", "the log has no such node", "the log that it has read", remedy))
    return checks


def _sameness(log: Path, record: BatchRecord | None) -> list[Check]:
    """Return a failed check for each node whose log is not the one from which the tables were made."""
    nodes: Mapping[str, NodeRecord] = {} if record is None else record.nodes
    checks = []
    for node, each in nodes.items():
        try:
            check_same_log(log, {node: each})
        except OtherLogError as error:
            remedy = "name the log of this stream; " + _ANEW
            checks.append(
                failure(f"log of {node}", error.found, f"{error.wanted}, of which the tables are made", remedy)
            )
        except (OSError, WhimbrelError):  # the check of the log reports it
            continue
    return checks


def _leftovers(out: Path, now: float) -> list[Check]:
    """Report temporary files of interrupted streams; files of the last hour may belong to a running stream."""
    places = [*out.glob("_stream/*.new")]
    old = [path for path in places if now - _mtime(path, now) > _OLD_S]
    if not old:
        return [ok("leftovers", "none")]
    remedy = "none needed: the next start of the stream removes them"
    return [warning("leftovers", f"{with_noun(len(old), 'file')} of a stream that was interrupted", "none", remedy)]


def _mtime(path: Path, now: float) -> float:
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:  # a running stream has just removed it
        return now


def _tables(out: Path) -> Iterator[Check]:
    """Report the number of files of each table, because a reader opens all of them."""
    try:
        from deltalake.exceptions import DeltaError

        from whimbrel.pipeline.files.delta import check_folder, data_files
    except (ImportError, WhimbrelError):  # the check of the packages reports it
        return
    folders = [path for path in out.iterdir() if path.is_dir() and path.name in TABLES] if out.is_dir() else []
    for folder in sorted(folders):
        try:
            check_folder(out, folder.name)
            sizes = [path.stat().st_size for path in data_files(out, folder.name)]
        except (OSError, WhimbrelError, DeltaError) as error:
            yield failure(f"table {folder.name}", str(error).partition("\n")[0], "a Delta table, whole", _ANEW)
            continue
        found = f"{with_noun(len(sizes), 'file')}, {with_unit(sum(sizes))}"
        small = sum(1 for size in sizes if size < _SMALL_BYTES)
        name, wanted = f"table {folder.name}", f"fewer than {_MANY} small files"
        if small >= _MANY:
            remedy = "let the stream run on: it puts small files together; a longer --every makes fewer"
            yield warning(name, f"{found}; {small:,} of them are small", wanted, remedy)
        else:
            yield ok(name, found, wanted)
