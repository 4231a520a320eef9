"""A stream that is killed, or its workers: whatever moment it was, its tables are those of one that was not."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession
from tests.e2e.stream_kills import NICER, WORKERS, WRITING, differences, kill_stream


def test_kill_9_neither_loses_nor_doubles_a_row(spark: SparkSession, tmp_path: Path) -> None:
    """Workers at any moment, then all of it between the commits of two tables: no gap, no row twice, in any table.

    ``bench/stream_soak.py`` kills twenty times, at other moments too, and on a cluster.
    """
    killed = kill_stream(tmp_path, [WORKERS, WRITING], seed=7, facts=600)
    assert len(killed.kills) == 2
    assert killed.facts > 100
    assert killed.niceness == min(os.getpriority(os.PRIO_PROCESS, 0) + NICER, 19)
    assert differences(spark, tmp_path, is_quick=True) == []
