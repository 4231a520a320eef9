"""Progress of a batch run: each task writes how far it is to a file; Spark reports nothing of a running task."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from whimbrel.pipeline.batch.job import BatchJob

__all__ = ["Progress", "watch_progress"]

_PREFIX, _EVERY_S = "progress-", 1.0


class Progress:
    """Progress of the task *name*, in a file that the driver reads."""

    def __init__(self, job: BatchJob, name: str) -> None:
        self._path = Path(job.scratch) / f"{_PREFIX}{quote(name, safe='')}"
        self._next_s = 0.0

    def note(self, numbers: int) -> None:
        """Write how many seqs were processed, at most once per ``_EVERY_S``."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _EVERY_S
            with suppress(OSError):
                self._path.write_text(str(numbers))


@contextmanager
def watch_progress(job: BatchJob, numbers: int, on_progress: Callable[[float], None]) -> Iterator[None]:
    """Call *on_progress* during the ``with`` block, with the fraction of *numbers* (seqs) that is done."""
    is_over, folder = threading.Event(), Path(job.scratch)

    def watch() -> None:
        while not is_over.wait(_EVERY_S):
            done = 0
            for path in folder.glob(f"{_PREFIX}*"):
                with suppress(OSError, ValueError):
                    done += int(path.read_text())
            if done:
                on_progress(min(1.0, done / max(1, numbers)))

    watcher = threading.Thread(target=watch, name="whimbrel-batch-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
        for path in folder.glob(f"{_PREFIX}*"):
            path.unlink(missing_ok=True)
