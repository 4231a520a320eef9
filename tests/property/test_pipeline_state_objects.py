"""State objects: every name stands for one state, whatever was written before and after it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.hold.store.interface import CorruptStoreError
from whimbrel.pipeline.stream.state.batch_record import LostStateError
from whimbrel.pipeline.stream.state.blob_store import Head
from whimbrel.pipeline.stream.state.objects import ObjectBlobs, live_objects, sweep

BLOBS = st.lists(st.integers(0, 3_000).map(bytes), max_size=3)
CHANGES = st.lists(st.tuples(st.booleans(), BLOBS), min_size=1, max_size=40)


@given(changes=CHANGES)
def test_a_state_is_what_was_put_and_appended(changes: list[tuple[bool, list[bytes]]]) -> None:
    """Also the state before the last change: a batch that is made again begins with it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        state: str | None = None
        whole: list[bytes] = []
        for number, (is_whole, blobs) in enumerate(changes):
            before, state_before = list(whole), state
            objects = ObjectBlobs(folder, state)
            head = Head(number, len(changes), number)
            if is_whole:
                objects.put(blobs, head)
                whole = list(blobs)
            else:
                objects.append(blobs, head)
                whole += blobs
            state = objects.head().version
            assert list(ObjectBlobs(folder, state).read()) == list(objects.read()) == whole
            assert ObjectBlobs(folder, state).head() == head._replace(version=state)
            if state_before is not None:
                assert list(ObjectBlobs(folder, state_before).read()) == before
            for gone in objects.dropped:
                (folder / gone).unlink()
            assert live_objects(folder, [state]) == {path.name for path in folder.iterdir()}


def test_a_state_has_few_objects(tmp_path: Path) -> None:
    """A thousand small changes must not be a thousand files to read, nor copied a thousand times."""
    state, written = None, 0
    for number in range(1_000):
        objects = ObjectBlobs(tmp_path, state)
        objects.append([bytes(100)], Head(number))
        state = objects.head().version
        written += (tmp_path / state).stat().st_size
        for gone in objects.dropped:
            (tmp_path / gone).unlink()
    assert len(list(tmp_path.iterdir())) < 40
    assert written < 20 * 1_000 * 104


def test_what_no_record_names_is_swept(tmp_path: Path) -> None:
    """A task that failed leaves its object behind."""
    kept, lost = ObjectBlobs(tmp_path, None), ObjectBlobs(tmp_path, None)
    kept.put([b"a"], Head(1))
    lost.put([b"b"], Head(1))
    assert sweep(tmp_path, live_objects(tmp_path, [kept.head().version])) == 1
    assert list(kept.read()) == [b"a"]
    with pytest.raises(LostStateError, match="no object"):
        ObjectBlobs(tmp_path, lost.head().version)


@pytest.mark.parametrize("place", [0, 5, -1])
def test_damage_is_an_error(tmp_path: Path, place: int) -> None:
    """A state with other bytes would make other rows."""
    objects = ObjectBlobs(tmp_path, None)
    objects.put([b"a" * 40], Head(1))
    path = tmp_path / objects.head().version
    data = bytearray(path.read_bytes())
    data[place] ^= 255
    path.write_bytes(data)
    with pytest.raises(CorruptStoreError):
        list(ObjectBlobs(tmp_path, path.name).read())
