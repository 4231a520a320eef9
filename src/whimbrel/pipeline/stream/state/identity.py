"""The identity of a stream, ``_stream/stream.json``: its name and the place of its checkpoint.

Rule: a checkpoint beside the tables is found relative to them, so that a copy of the folder uses its own copy.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from whimbrel.log.files import put
from whimbrel.pipeline.spark.paths import local_path, spark_path

__all__ = ["StreamIdentity"]

_FILE, _CHECKPOINT, _OBJECTS = "stream.json", "checkpoint", "objects"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamIdentity:
    """Properties of a stream that are fixed when it is created."""

    name: str
    checkpoint: str
    """Folder of the state, in Spark's form; a stream of an older Whimbrel may have it on any file system of Spark's."""

    def objects(self, folder: Path) -> Path:
        """Return the folder of the state objects: below the checkpoint, or else below *folder*, beside the tables."""
        return (local_path(self.checkpoint) or folder) / _OBJECTS

    @classmethod
    def read(cls, folder: Path) -> StreamIdentity | None:
        """Read the identity from *folder* (``_stream``, beside the tables); None if no stream was created there."""
        try:
            found = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        told = str(found[_CHECKPOINT])
        own = folder / _CHECKPOINT
        is_own = found.get("is_own")
        if is_own is None:  # an older Whimbrel wrote an absolute path, which a copied folder has too
            local = local_path(told)
            is_own = local is not None and local.parts[-2:] == (folder.name, _CHECKPOINT) and own.is_dir()
        checkpoint = spark_path(own) if is_own else told
        return cls(name=str(found["name"]), checkpoint=checkpoint)

    @classmethod
    def begun(cls, folder: Path, *, name: str, checkpoint: str | None) -> StreamIdentity:
        """Write the identity of a new stream; the default *checkpoint* is beside the tables."""
        own = spark_path(folder / _CHECKPOINT)
        place = checkpoint or own
        row = {"name": name, _CHECKPOINT: place, "is_own": place == own}
        put(folder / _FILE, json.dumps(row).encode())
        return cls(name=name, checkpoint=place)
