"""System topics: publishes the broker's metrics and the pipeline's results under ``$SYS``, at intervals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from whimbrel.broker.settings.config import Config
from whimbrel.broker.shell.metrics import LogFigures, connected_devices, system_values
from whimbrel.broker.shell.running import Running, monotonic_us, until_closed
from whimbrel.broker.state.feedback import Announcements, PipelineResults

if TYPE_CHECKING:
    from whimbrel.broker.shell.operate.feedback_reader import FeedbackReader

__all__ = ["SystemTopics"]

_log = structlog.get_logger("whimbrel")


class SystemTopics:
    """Publisher of ``$SYS`` topics; threads of *pool* read the pipeline's tables, *flush_soon* sends to clients."""

    def __init__(
        self,
        running: Running,
        pool: Executor,
        flush_soon: Callable[[], None],
        log_figures: Callable[[], LogFigures],
    ) -> None:
        self.running, self._pool, self._flush_soon, self._log_figures = running, pool, flush_soon, log_figures
        self._feedback_reader = _feedback_reader(running.config)
        self._announcements = Announcements(tells_links=running.config.pipeline.tells_links)

    def start(self) -> None:
        """Publish ``$SYS`` topics and read the pipeline's tables for the first time, and start the timer of each.

        Each of the two is left out if it is not configured.
        """
        if self.running.config.observe.sys_interval_s:
            self._publish()
        if self._feedback_reader is not None:
            self._read()

    @until_closed
    def _publish(self) -> None:
        running, broker = self.running, self.running.broker
        values = system_values(broker, monotonic_us() - running.started_us, self._log_figures())
        values |= self._announcements.changes(broker.feedback, connected_devices(broker))
        broker.tell_system(values, running.clock.now())
        self._flush_soon()
        running.loop.call_later(running.config.observe.sys_interval_s, self._publish)

    @until_closed
    def _read(self) -> None:
        """Begin to read the pipeline's tables, in a thread."""
        assert self._feedback_reader is not None
        future = self.running.loop.run_in_executor(self._pool, self._feedback_reader.look)
        future.add_done_callback(self._learn)

    def _learn(self, done: asyncio.Future[PipelineResults]) -> None:
        running = self.running
        if done.cancelled() or running.is_closed:
            return
        learned, lessons = running.broker.feedback, done.result()
        if lessons.troubles and not learned.troubles:
            _log.warning("what the pipeline learned cannot be read; what is known stays", reasons=lessons.troubles)
        elif learned.troubles and not lessons.troubles:
            _log.info("what the pipeline learned can be read again")
        learned.take(lessons)
        running.loop.call_later(running.config.pipeline.interval_s, self._read)


def _feedback_reader(config: Config) -> FeedbackReader | None:
    """Return a reader of the pipeline's tables, or None if none are configured; Arrow is loaded only if needed."""
    if not config.pipeline.tables:
        return None
    from whimbrel.broker.shell.operate.feedback_reader import FeedbackReader

    return FeedbackReader(Path(config.pipeline.tables), config.node.name, most=config.pipeline.max_rows)
