"""The operators of the stream's query, as Spark knows them: a fold a node, and a fold of the windows.

Before the first batch Spark starts a Python process for each operator, in the driver, to ask which state it has.
Rule: this module loads nothing but what that takes; the folds are loaded where rows come, which takes two seconds.
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
    """What both have: a job, which is read with the first rows, and where the state is."""

    def __init__(self, job: Job) -> None:
        self._packed = pickle.dumps(job)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Find the state."""
        self._blobs = SparkBlobs(handle)

    def close(self) -> None:
        """Have nothing to let go of."""

    def _job(self) -> Job:
        job: Job = pickle.loads(self._packed)  # noqa: S301 # ours
        return job


class NodeFold(_Fold):
    """``fold_node`` as an operator of Spark's."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803 # Spark's names
        """Fold the spans of the node *key*; there is one in a batch."""
        from whimbrel.pipeline.stream.node_fold import fold_node, scratch, span_of

        del timerValues
        found, job = [span_of(row) for row in rows], self._job()
        for span in sorted(found):
            for made in fold_node(job, key[0], span, self._blobs, scratch()):
                yield Row(**made._asdict())


class WindowFold(_Fold):
    """``fold_windows`` as an operator of Spark's."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803 # Spark's names
        """Take in what was made of all nodes."""
        from whimbrel.pipeline.stream.window_fold import fold_windows
        from whimbrel.pipeline.unit.made import Made

        del key, timerValues
        found = (Made(row["kind"], row["node"], row["table"], row["rows"], bytes(row["told"])) for row in rows)
        for made in fold_windows(self._job(), found, self._blobs):
            yield Row(**made._asdict())
