"""Old checkpoints: read the state of a stream that an older Whimbrel stored in Spark's checkpoint, once.

Formats 3 and 4 had a query of Spark's, with an operator that folded nodes and one that folded the windows. Each had its
state as blobs (``blob_store``) in Spark's state store.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it ships no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from whimbrel.errors import Phrase
from whimbrel.log.files import put
from whimbrel.pipeline.spark.paths import local_path
from whimbrel.pipeline.stream.state.batch_record import BatchRecord, LostStateError
from whimbrel.pipeline.stream.state.blob_store import Head
from whimbrel.pipeline.stream.state.objects import ObjectBlobs
from whimbrel.pipeline.stream.window_fold import WINDOWS

__all__ = ["States", "adopt_states", "read_states", "remove_checkpoint"]

_NODES_OPERATOR, _WINDOWS_OPERATOR = 1, 0
_HEAD, _LIST = "head", "blobs"
_SCHEMA = re.compile(r'"[^"]*/state/(?=\d+/_stateSchema/)')
_OF_SPARK = ("commits", "metadata", ".metadata.crc", "offsets", "sources", "state")

States: TypeAlias = Mapping[str, tuple[list[bytes], Head]]
"""Blobs and their summary, per node and for the windows."""


def last_whole_batch(record: BatchRecord) -> int:
    """Return the batch after which the next one begins; -1 if there is none."""
    return record.batch if record.is_done else record.batch - 1


def read_states(spark: SparkSession, checkpoint: str, batch: int) -> dict[str, tuple[list[bytes], Head]]:
    """Return the states that Spark's *checkpoint* has after *batch*."""
    found: dict[str, tuple[list[bytes], Head]] = {}
    _relocate(checkpoint)
    try:
        for operator in (_NODES_OPERATOR, _WINDOWS_OPERATOR):
            reader = spark.read.format("statestore").option("path", checkpoint)
            reader = reader.option("operatorId", operator).option("batchId", batch)
            heads = reader.option("stateVarName", _HEAD).load().select("key.*", "value.*").collect()
            lists = reader.option("stateVarName", _LIST).load().select("key.*", "list_element.*").collect()
            for key, *head in heads:
                found[key] = ([bytes(blob) for own, blob in lists if own == key], Head(*head))
    except (PySparkException, Py4JError) as error:
        told = Phrase(f"one that cannot be read ({str(error).partition(chr(10))[0]})")
        raise LostStateError("the checkpoint", told, f"the state after batch {batch}") from error
    return found


def _relocate(checkpoint: str) -> None:
    """Correct the absolute paths in a *checkpoint* that was moved or copied with the tables: Spark reads none other."""
    place = local_path(checkpoint)
    for path in () if place is None else place.glob("state/*/_metadata/v2/[0-9]*"):
        old = path.read_text(encoding="utf-8")
        new = _SCHEMA.sub(f'"{checkpoint}/state/', old)
        if new != old:
            put(path, new.encode())
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # the checksum of the old text


def adopt_states(record: BatchRecord, states: States, folder: Path) -> BatchRecord:
    """Write *states* as objects below *folder*; return the record with their names."""

    def write(name: str, applied: int) -> str:
        blobs, head = states.get(name, ([], Head()))
        if head.applied != applied:
            raise LostStateError(f"the checkpoint: {name}", f"number {head.applied}", f"number {applied}")
        objects = ObjectBlobs(folder, None)
        objects.put(blobs, head)
        return objects.head().version

    nodes = {node: replace(each, state=write(node, each.applied)) for node, each in record.nodes.items()}
    return replace(record, nodes=nodes, windows_state=write(WINDOWS, last_whole_batch(record)))


def remove_checkpoint(checkpoint: str) -> None:
    """Remove Spark's files from *checkpoint*, if that is a folder of this machine: the stream does not need them."""
    place = local_path(checkpoint)
    for name in _OF_SPARK if place is not None else ():
        found = Path(place or "", name)
        if found.is_dir():
            shutil.rmtree(found, ignore_errors=True)
        else:
            found.unlink(missing_ok=True)
