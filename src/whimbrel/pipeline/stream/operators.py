"""The stateful operators of the stream's Spark query: a fold per node, and a fold of the windows.

Before the first batch Spark starts a Python process per operator, on the driver's machine, to find its state variables.
Rule: this module imports only what that needs. The folds, whose import takes two seconds, are imported with the first
rows.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from whimbrel.pipeline.stream.blob_store import SparkBlobs

if TYPE_CHECKING:
    from whimbrel.pipeline.stream.node_fold import Job

__all__ = ["NodeFold", "WindowFold"]


class _Fold(StatefulProcessor):
    """Base class of both operators: has the operator's state, and the stream's job, unpickled with the first rows."""

    def __init__(self, job: Job) -> None:
        self._packed = pickle.dumps(job)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state variables of the operator."""
        self._blobs = SparkBlobs(handle)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _job(self) -> Job:
        job: Job = pickle.loads(self._packed)  # noqa: S301 # ours
        return job


class NodeFold(_Fold):
    """``fold_node`` as a stateful operator of Spark; its key is the node."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803 # Spark's names
        """Process the new seqs of the node *key*; a batch has one row (a range of seqs) per node."""
        from whimbrel.pipeline.stream.node_fold import fold_node, span_of

        del timerValues
        found, job = [span_of(row) for row in rows], self._job()
        for span in sorted(found):
            for made in fold_node(job, key[0], span, self._blobs):
                yield Row(**made._asdict())


class WindowFold(_Fold):
    """``fold_windows`` as a stateful operator of Spark; it has one key."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803 # Spark's names
        """Add the output of all nodes in a batch to the time windows; yield the changed rows, and all other output."""
        from whimbrel.pipeline.stream.window_fold import fold_windows
        from whimbrel.pipeline.unit.made import WorkerOutput

        del key, timerValues
        found = (WorkerOutput(row["kind"], row["node"], row["table"], row["rows"], bytes(row["told"])) for row in rows)
        for made in fold_windows(self._job(), found, self._blobs):
            yield Row(**made._asdict())
