"""A checkpoint is whole or refused: each byte, each step of writing it, and any bytes at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whimbrel.hold.rows import Key
from whimbrel.log import layout
from whimbrel.log.checkpoints.codec import FORMAT, CheckpointHeader, CheckpointReader, encode_checkpoint
from whimbrel.log.checkpoints.folder import cut_limit, newest_sound, opened, save
from whimbrel.log.errors import LogError, LogWriteError, NewerLogError
from whimbrel.log.files import make_folder

NODE = "node-1"
Rows = dict[Key, bytes]

parts = st.none() | st.text(st.characters(codec="utf-8"), max_size=8) | st.integers(-(2**63), 2**63 - 1)
keys = st.builds(
    lambda kind, rest: (kind, *rest), st.text(st.characters(codec="utf-8"), max_size=8), st.lists(parts, max_size=3)
)
states = st.dictionaries(keys, st.binary(max_size=40), max_size=12)


def header_of(seq: int, salt: int = 7) -> CheckpointHeader:
    """Return the header of a checkpoint after *seq*."""
    return CheckpointHeader(node=NODE, seq=seq, state_at=seq, made_at=seq, salt=salt)


def rows_in(data: bytes, folder: Path) -> list[tuple[Key, bytes]]:
    """Return the rows of a checkpoint of these bytes, or raise."""
    path = folder / "checkpoint"
    path.write_bytes(data)
    with path.open("rb") as stream:
        return list(CheckpointReader(stream, path).rows())


def state(seq: int) -> Rows:
    """Return the rows of the state after *seq*."""
    return {("now",): b"%d" % seq, **{("copy", number): b"x" * number for number in range(seq % 7)}}


def found(directory: Path) -> tuple[int, Rows] | None:
    """Return number and rows of the newest sound checkpoint."""
    info, _ = newest_sound(directory, NODE)
    if info is None:
        return None
    with opened(info.path, NODE, info.header.seq) as reader:
        return info.header.seq, dict(reader.rows())


@given(rows=states, salt=st.integers(0, 2**32 - 1))
def test_a_checkpoint_gives_back_its_rows(tmp_path_factory: pytest.TempPathFactory, rows: Rows, salt: int) -> None:
    """The rows come back in the order they were written in."""
    data = b"".join(encode_checkpoint(header_of(3, salt), rows.items()))
    assert rows_in(data, tmp_path_factory.getbasetemp()) == list(rows.items())


def test_rows_of_many_frames_come_back(tmp_path: Path) -> None:
    """A frame is a piece of the writing, not of the meaning; one row may be larger than a frame."""
    rows: Rows = {("copy", number): os.urandom(70_000 + number) for number in range(9)} | {("big",): b"b" * 1_000_000}
    data = b"".join(encode_checkpoint(header_of(3), rows.items()))
    assert rows_in(data, tmp_path) == list(rows.items())


def test_each_flipped_missing_or_added_byte_is_noticed(tmp_path: Path) -> None:
    """A state with one wrong byte would be served for years."""
    data = b"".join(encode_checkpoint(header_of(3), state(5).items()))
    for at in range(len(data)):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]):
            with pytest.raises(LogError):
                rows_in(damaged, tmp_path)
    with pytest.raises(LogError, match="follows"):
        rows_in(data + b"\0", tmp_path)


@settings(max_examples=200)
@given(data=st.binary(max_size=300), keeps_head=st.booleans())
def test_any_bytes_are_rows_or_our_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, *, keeps_head: bool
) -> None:
    """A file of the folder may be anything by now."""
    head = header_of(3).pack() if keeps_head else b""
    with pytest.raises(LogError):
        rows_in(head + data, tmp_path_factory.getbasetemp())


def test_frames_out_of_order_are_refused(tmp_path: Path) -> None:
    """Each frame is whole; the order is not."""
    rows: Rows = {("copy", number): b"x" * 300_000 for number in range(3)}
    head, first, second, *rest = encode_checkpoint(header_of(3), rows.items())
    with pytest.raises(LogError, match="comes next"):
        rows_in(b"".join((head, second, first, *rest)), tmp_path)


def test_a_newer_format_is_refused_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To start before a newer checkpoint would be to go back in time."""
    layout.create(tmp_path / "log")
    make_folder(layout.segments_folder(tmp_path / "log", NODE))
    save(tmp_path / "log", header_of(3), state(3).items())
    with monkeypatch.context() as patch:
        patch.setattr("whimbrel.log.checkpoints.codec.FORMAT", FORMAT + 1)
        save(tmp_path / "log", header_of(4), state(4).items())
    with pytest.raises(NewerLogError, match=rf"newer Whimbrel \(format {FORMAT + 1}\)"):
        newest_sound(tmp_path / "log", NODE)


class Crash(BaseException):
    """The process ends here."""


@contextmanager
def crashing(patch: pytest.MonkeyPatch, step: int) -> Iterator[list[str]]:
    """End the process before its step number *step* on the disk; yield the steps that were taken."""
    taken: list[str] = []

    def counted(name: str, real: object) -> object:
        def call(*args: object, **kwargs: object) -> object:
            if len(taken) == step:
                raise Crash
            taken.append(name)
            return real(*args, **kwargs)  # type: ignore[operator]  # any function of the system

        return call

    with patch.context() as inner:
        for name in ("open", "write", "fsync"):
            inner.setattr(os, name, counted(name, getattr(os, name)))
        for name in ("replace", "unlink"):
            inner.setattr(Path, name, counted(name, getattr(Path, name)))
        yield taken


def test_a_crash_at_each_step_leaves_the_old_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next checkpoint is made as if nothing had happened; two are always there once there were two."""
    step, is_done = 0, False
    while not is_done:
        directory = tmp_path / str(step)
        layout.create(directory)
        make_folder(layout.segments_folder(directory, NODE))
        for seq in (10, 20):
            save(directory, header_of(seq), state(seq).items())
        with crashing(monkeypatch, step):
            try:
                save(directory, header_of(33), state(33).items())
                is_done = True
            except Crash:
                pass
        assert found(directory) in {20: (20, state(20)), 33: (33, state(33))}.values()
        limit = cut_limit(directory, NODE)
        assert limit in {10, 20}
        save(directory, header_of(41), state(41).items())
        assert found(directory) == (41, state(41))
        assert len(layout.checkpoints(directory, NODE)) == 2
        assert not list(layout.segments_folder(directory, NODE).glob(".*"))
        step += 1
    assert step > 8


def test_a_kill_at_each_byte_of_a_checkpoint_leaves_the_one_before(tmp_path: Path) -> None:
    """Whether the bytes are beside its place yet or, as a disk that lost power may have it, under its name."""
    folder = layout.segments_folder(tmp_path, NODE)
    layout.create(tmp_path)
    make_folder(folder)
    save(tmp_path, header_of(10), state(10).items())
    path = layout.checkpoint_path(tmp_path, NODE, 20)
    data = b"".join(encode_checkpoint(header_of(20), state(20).items()))
    for length in range(len(data)):
        for place in (path.with_name(f".{path.name}.new"), path):
            place.write_bytes(data[:length])
            assert found(tmp_path) == (10, state(10))
            place.unlink()
    path.write_bytes(data)
    assert found(tmp_path) == (20, state(20))


def test_a_damaged_checkpoint_costs_no_sound_one(tmp_path: Path) -> None:
    """The last two that can be read are kept, not the last two names."""
    layout.create(tmp_path / "log")
    make_folder(layout.segments_folder(tmp_path / "log", NODE))
    for seq in (10, 20):
        save(tmp_path / "log", header_of(seq), state(seq).items())
    path = layout.checkpoint_path(tmp_path / "log", NODE, 20)
    path.write_bytes(path.read_bytes()[:-1])
    assert found(tmp_path / "log") == (10, state(10))
    save(tmp_path / "log", header_of(30), state(30).items())
    assert [seq for seq, _ in layout.checkpoints(tmp_path / "log", NODE)] == [10, 30]


def test_nothing_may_be_cut_before_there_are_two(tmp_path: Path) -> None:
    """One checkpoint alone would be the only copy of what is older."""
    layout.create(tmp_path / "log")
    make_folder(layout.segments_folder(tmp_path / "log", NODE))
    limits = [cut_limit(tmp_path / "log", NODE)]
    for seq in (10, 20, 30):
        save(tmp_path / "log", header_of(seq), state(seq).items())
        limits.append(cut_limit(tmp_path / "log", NODE))
    assert limits == [None, 0, 10, 20]


def test_a_full_disk_leaves_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that could not be written is not there, and the ones before it are."""
    layout.create(tmp_path / "log")
    make_folder(layout.segments_folder(tmp_path / "log", NODE))
    save(tmp_path / "log", header_of(10), state(10).items())

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(LogWriteError, match="No space"):
            save(tmp_path / "log", header_of(20), state(20).items())
    assert found(tmp_path / "log") == (10, state(10))
