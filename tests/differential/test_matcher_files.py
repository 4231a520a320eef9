"""The cache of packed matchers: what is mapped is what packing anew gives, whatever other processes and users do."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from random_logs import random_log

from whimbrel.log.columns import to_arrow
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.rows import row_of
from whimbrel.pipeline.subscriptions.in_force import changed_schema
from whimbrel.pipeline.subscriptions.matcher_files import (
    MatcherFiles,
    MatcherFolderError,
    MatcherInput,
    Uses,
    private_folder,
)
from whimbrel.pipeline.subscriptions.versions import (
    CHANGED,
    DELETED,
    LayerBase,
    PackedVersions,
    pack_versions,
    versions,
)

NODE = "n"


@pytest.fixture(autouse=True)
def _unmapped() -> Iterator[None]:
    PackedVersions.forget(NODE)
    yield
    PackedVersions.forget(NODE)


def given_of(seed: int) -> tuple[MatcherInput, Any]:
    """Return what a random log's matcher is made of, and its publications."""
    rows: dict[str, list[dict[str, object]]] = {"publications": [], "interests": [], "sessions": []}
    for fact in random_log(Random(seed), NODE, facts=300, has_receipts=True):
        table, row = row_of(fact)
        if table in rows:
            rows[table].append(row)
    changed = to_arrow("interests", rows["interests"]).select(CHANGED).cast(changed_schema())
    deleted = to_arrow("sessions", rows["sessions"]).select(DELETED)
    found = versions(changed, deleted, first=0, last=INT64_MAX)
    return MatcherInput(found), to_arrow("publications", rows["publications"]).combine_chunks()


def matches_of(packed: PackedVersions, publications: Any) -> list[tuple[int, int]]:
    """Return the matches as pairs of seqs."""
    found: list[tuple[int, int]] = []
    for batch in publications.to_batches():
        rows, handles = packed.match(batch)
        found += zip(batch.column("seq").to_numpy()[rows].tolist(), packed.begun[handles].tolist(), strict=True)
    return sorted(found)


@pytest.mark.parametrize("seed", range(6))
def test_a_cached_matcher_is_the_one_that_packing_gives(tmp_path: Path, seed: int) -> None:
    """A worker must not be able to tell where its matcher came from."""
    given, publications = given_of(seed)
    MatcherFiles(tmp_path).open(NODE, given)
    PackedVersions.forget(NODE)
    files = MatcherFiles(tmp_path)
    cached = files.open(NODE, given_of(seed)[0])
    assert files.uses == Uses(found=1, packed=0)
    pack_versions(tmp_path / "anew", given.versions)
    anew = PackedVersions.map(str(tmp_path / "anew"), "another")
    PackedVersions.forget("another")
    assert matches_of(cached, publications) == matches_of(anew, publications) != []


@pytest.mark.parametrize("change", ["row", "filter", "order", "over", "tracks"])
def test_other_input_has_another_digest(change: str) -> None:
    """A digest that misses a part of the input would give somebody else's matches."""
    given, _ = given_of(1)
    table = given.versions
    texts = table.column("filter_text").to_pylist()
    place = table.schema.get_field_index("filter_text")
    other = {
        "row": lambda: MatcherInput(table.slice(1)),
        "filter": lambda: MatcherInput(table.set_column(place, "filter_text", pa.array(["x == 1", *texts[1:]]))),
        "order": lambda: MatcherInput(table.take(list(range(table.num_rows))[::-1])),
        "over": lambda: MatcherInput(table, LayerBase("below", ["s"])),
        "tracks": lambda: MatcherInput(table, tracks={"numbers": pa.array([1]).to_numpy()}),
    }[change]()
    assert other.digest != given.digest
    assert MatcherInput(pa.concat_tables([table.slice(0, 3), table.slice(3)])).digest == given.digest


def _open(folder: Path, seed: int, start: Any, said: Any) -> None:
    start.wait()
    files = MatcherFiles(folder)
    files.open(NODE, given_of(seed)[0])
    said.put(files.uses)


def test_processes_that_need_one_matcher_at_once_pack_it_once(tmp_path: Path) -> None:
    """A batch run starts a task per core at once, all with the same subscriptions."""
    context = multiprocessing.get_context("fork")
    start, said = context.Barrier(3), context.Queue()
    workers = [context.Process(target=_open, args=(tmp_path, 2, start, said)) for _ in range(3)]
    for worker in workers:
        worker.start()
    uses = [said.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    assert sorted(uses) == [Uses(0, 1), Uses(1, 0), Uses(1, 0)]


def _die_while_packing(folder: Path) -> None:
    def pack(self: MatcherInput, path: Path) -> None:  # noqa: ARG001  # as the method that it replaces
        path.write_bytes(b"half of a matcher")
        os.kill(os.getpid(), signal.SIGKILL)

    MatcherInput.pack = pack  # type: ignore[method-assign]  # in a process of its own
    MatcherFiles(folder).open(NODE, given_of(3)[0])


def test_a_process_that_is_killed_while_packing_leaves_nothing_that_is_used(tmp_path: Path) -> None:
    """Its lock is free at once, and its unfinished file is evicted later."""
    dying = multiprocessing.get_context("fork").Process(target=_die_while_packing, args=(tmp_path,))
    dying.start()
    dying.join()
    left = [path for path in tmp_path.iterdir() if not path.name.startswith("lock")]
    assert [path.suffix for path in left] == [".unfinished"]
    files, (given, publications) = MatcherFiles(tmp_path), given_of(3)
    assert matches_of(files.open(NODE, given), publications)
    assert files.uses == Uses(0, 1)
    files.evict(now_s=time.time() + 700)
    assert not left[0].exists()
    assert files.path(given.digest).exists()


@pytest.mark.parametrize("damage", ["empty", "cut", "bit", "other", "link", "writable"])
def test_a_damaged_or_foreign_file_is_packed_again(tmp_path: Path, damage: str) -> None:
    """A file is not trusted for its name; the kernels follow its numbers without a check."""
    files, (given, publications) = MatcherFiles(tmp_path), given_of(4)
    wanted = matches_of(files.open(NODE, given), publications)
    path, (other, _) = files.path(given.digest), given_of(5)
    content = bytearray(path.read_bytes())
    if damage == "other":
        files.open(NODE, other)
        files.path(other.digest).replace(path)
    elif damage == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif damage == "writable":
        path.chmod(0o666)
    else:
        content[len(content) // 2] ^= 1
        path.unlink()
        path.write_bytes(bytes({"empty": b"", "cut": content[: len(content) // 2], "bit": content}[damage]))
    PackedVersions.forget(NODE)
    again = MatcherFiles(tmp_path)
    assert matches_of(again.open(NODE, given), publications) == wanted
    assert again.uses == Uses(0, 1)
    assert not path.is_symlink()


def test_a_matcher_outlives_its_file_and_is_packed_again_for_others(tmp_path: Path) -> None:
    """Eviction may come between any two steps of a reader."""
    files, (given, publications) = MatcherFiles(tmp_path, max_bytes=0), given_of(1)
    packed = files.open(NODE, given)
    wanted = matches_of(packed, publications)
    files.evict(now_s=time.time() + 61)
    assert not files.path(given.digest).exists()
    assert matches_of(packed, publications) == wanted
    PackedVersions.forget(NODE)
    assert matches_of(files.open(NODE, given), publications) == wanted


def test_eviction_takes_the_least_recently_used_first(tmp_path: Path) -> None:
    """The files in use stay as long as there is room; one that is young stays in any case."""
    inputs = [given_of(seed)[0] for seed in range(3)]
    files = MatcherFiles(tmp_path)
    for number, given in enumerate(inputs):
        files.open(NODE, given)
        os.utime(files.path(given.digest), (1_000 + number, 1_000 + number))
    PackedVersions.forget(NODE)
    sizes = [files.path(given.digest).stat().st_size for given in inputs]

    def there() -> list[bool]:
        return [files.path(given.digest).exists() for given in inputs]

    MatcherFiles(tmp_path, max_bytes=1).evict(now_s=1_010)
    assert there() == [True, True, True]  # all are young
    os.utime(files.path(inputs[0].digest), (1_050, 1_050))
    MatcherFiles(tmp_path, max_bytes=sum(sizes) - 1).evict(now_s=1_100)
    assert there() == [True, False, True]
    MatcherFiles(tmp_path, max_age_s=50).evict(now_s=1_100)
    assert there() == [True, False, False]


def test_a_reader_waits_for_a_limited_time(tmp_path: Path) -> None:
    """A process that holds the lock may be stopped for hours."""
    given, publications = given_of(2)
    lock = os.open(tmp_path / f"lock-{given.digest[:2]}", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        assert matches_of(MatcherFiles(tmp_path, wait_s=0).open(NODE, given), publications)
    finally:
        os.close(lock)


def test_the_folder_belongs_to_the_user_alone(tmp_path: Path) -> None:
    """The temporary folder is for everybody: another user may be there first, with a link or an open folder."""
    folder = private_folder(tmp_path)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert private_folder(tmp_path) == folder
    folder.chmod(0o755)
    with pytest.raises(MatcherFolderError, match="0700"):
        private_folder(tmp_path)
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(MatcherFolderError):
        private_folder(tmp_path)
