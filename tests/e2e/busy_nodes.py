"""``whimbrel`` with nodes that are busy from a few facts on, so that a short log is folded in groups of sessions."""

from __future__ import annotations

from whimbrel.cli import main
from whimbrel.pipeline.stream import batches
from whimbrel.pipeline.stream.job import Job

if __name__ == "__main__":
    defaults = Job.__init__.__kwdefaults__
    assert defaults is not None
    assert "group_facts" in defaults
    defaults["group_facts"] = 10
    assert batches._BUSY
    assert batches._LEAST_CORES
    batches._BUSY, batches._LEAST_CORES = 0.0, 1
    main()
