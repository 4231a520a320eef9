"""The demo's side of the pipeline: starts the pipeline's process, receives its messages, and ends it.

Devices measure the latency of notifications. In one process with Spark's driver, they would measure how long Python's
global lock makes them wait.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from whimbrel.cli.demo.following import FINISH, FIRST, FOLLOW, Ended, Ledger, follow
from whimbrel.cli.demo.view import PipelineView
from whimbrel.errors import WhimbrelError

__all__ = ["PipelineDiedError", "WardPipeline"]

_END_S = 20.0


class PipelineDiedError(WhimbrelError):
    """The demo's pipeline ended without a message. Reaction: check whether there is enough memory, and try again."""

    def __init__(self, status: int | None) -> None:
        super().__init__(status)
        self.status = status

    def __str__(self) -> str:
        return f"the demo's pipeline ended with status {self.status}, and did not say why; is there memory enough?"


class WardPipeline:
    """The stream from the log of *node* in *log* to tables in *out*.

    A thread calls *on_first* when the first batch is in the tables, and *on_end* at the end.
    """

    def __init__(
        self, log: Path, node: str, out: Path, *, on_first: Callable[[], None], on_end: Callable[[], None]
    ) -> None:
        self._on_first, self._on_end = on_first, on_end
        self.view = PipelineView()
        self._ended: Ended | None = None
        context = multiprocessing.get_context("spawn")
        self._pipe, self._theirs = context.Pipe()
        self._process = context.Process(target=follow, args=(self._theirs, log, node, out), daemon=True)
        self._listener = threading.Thread(target=self._listen, name="whimbrel pipeline", daemon=True)

    def start(self) -> None:
        """Start the process, which starts Spark."""
        self._process.start()
        self._theirs.close()  # the pipe then ends when the process ends
        self._listener.start()

    def follow(self) -> None:
        """Tell the process to follow the log, which must exist by now."""
        self._tell(FOLLOW)

    def finish(self) -> None:
        """Tell the process that the log is complete: it reads the log to its end, and then the tables."""
        self._tell(FINISH)

    def break_off(self) -> None:
        """Kill the process if it has not ended; then ``result`` has no tables."""
        if self._process.pid is None:
            return
        if self._ended is None:
            self._process.kill()  # Java ends with it
        self._process.join(_END_S)

    def result(self) -> Ledger:
        """Wait until the process has ended; return its result."""
        self._listener.join()
        self.check()
        assert self._ended is not None
        assert self._ended.ledger is not None
        return self._ended.ledger

    def check(self) -> None:
        """Raise the failure of the process, if it failed."""
        if self._ended is not None and self._ended.failure is not None:
            raise self._ended.failure

    def _tell(self, what: str) -> None:
        with suppress(OSError):  # it has ended; the listener knows the reason
            self._pipe.send(what)

    def _listen(self) -> None:
        try:
            while self._ended is None:
                told = self._pipe.recv()
                if isinstance(told, PipelineView):
                    self.view = told
                elif told == FIRST:
                    self._on_first()
                else:
                    self._ended = told
        except (EOFError, OSError):
            self._process.join(_END_S)
            self._ended = Ended(None, PipelineDiedError(self._process.exitcode))
        self._on_end()
