"""The identity of a stream: what it is called, and where its checkpoint is, also in a copy of its folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from whimbrel.pipeline.stream.state.identity import StreamIdentity


def begun(out: Path, checkpoint: str | None = None) -> Path:
    """Return the folder of a stream that has begun."""
    folder = out / "_stream"
    (folder / "checkpoint").mkdir(parents=True)
    made = StreamIdentity.begun(folder, name="s", checkpoint=checkpoint)
    assert StreamIdentity.read(folder) == made
    return folder


def checkpoint_of(folder: Path) -> str:
    """Return where the checkpoint of a stream is."""
    found = StreamIdentity.read(folder)
    assert found is not None
    assert found.name == "s"
    return found.checkpoint


@pytest.mark.parametrize("is_old", [False, True], ids=["now", "of an older Whimbrel"])
def test_a_copied_folder_has_its_own_checkpoint(tmp_path: Path, *, is_old: bool) -> None:
    """A stream of the copy would move the original's on, and the original would find itself ahead of its tables."""
    folder = begun(tmp_path / "out")
    assert checkpoint_of(folder) == f"file://{folder}/checkpoint"
    if is_old:
        row = json.loads((folder / "stream.json").read_text())
        del row["is_own"]
        (folder / "stream.json").write_text(json.dumps(row))
        assert checkpoint_of(folder) == f"file://{folder}/checkpoint"
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    assert checkpoint_of(tmp_path / "copy" / "_stream") == f"file://{tmp_path}/copy/_stream/checkpoint"


def test_a_checkpoint_elsewhere_stays_there(tmp_path: Path) -> None:
    """On HDFS, say: it is told as it was."""
    begun(tmp_path / "out", "hdfs://names/streams/one")
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    assert checkpoint_of(tmp_path / "copy" / "_stream") == "hdfs://names/streams/one"


def test_none_has_begun(tmp_path: Path) -> None:
    """An empty folder has no stream."""
    assert StreamIdentity.read(tmp_path) is None
