"""Blocking tasks: run slow work of the core, such as verifying a password, in threads beside the event loop.

Message bodies that a policy transforms for a device are computed in processes (``Transforms``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from whimbrel.broker.deliver.shaping import LOOK_US, TransformJob
from whimbrel.broker.shell.running import Running
from whimbrel.broker.waiting.blocking_tasks import BlockingTask
from whimbrel.shape.faults import Fault
from whimbrel.shape.pool import TransformPool

__all__ = ["MAX_AT_ONCE", "BlockingThreads", "Transforms"]

MAX_AT_ONCE = 2
"""Most passwords that are hashed at the same time; each needs 128 MiB of memory."""
_LOOK_S = LOOK_US / 1e6


class BlockingThreads:
    """Runner of the core's blocking tasks (such as password checks) in threads of *pool*.

    It passes the results to the core, and calls *flush_soon* to send the core's answers to clients.
    """

    def __init__(self, running: Running, pool: Executor, flush_soon: Callable[[], None]) -> None:
        self.running, self._pool, self._flush_soon = running, pool, flush_soon
        self._under_way = 0

    def begin_tasks(self) -> None:
        """Start the tasks that the core has queued, while fewer than ``MAX_AT_ONCE`` are running."""
        running, tasks = self.running, self.running.broker.blocking_tasks
        while self._under_way < MAX_AT_ONCE and (task := tasks.next(running.listened_us)) is not None:
            self._under_way += 1
            future = running.loop.run_in_executor(self._pool, task.ask)
            future.add_done_callback(partial(self._end_task, task))

    def _end_task(self, task: BlockingTask, done: asyncio.Future[object]) -> None:
        self._under_way -= 1
        running = self.running
        if running.failure is None and not running.is_closed:
            running.broker.on_answer(task, done.result(), running.clock.now())
            self._flush_soon()


class Transforms:
    """Runner of body transforms, which policies ask for, in a pool of processes with a bounded queue."""

    def __init__(self, running: Running, flush_soon: Callable[[], None]) -> None:
        self._running, self._flush_soon = running, flush_soon
        self._pool = TransformPool(limits=running.broker.config.policies.limits)

    def begin(self) -> None:
        """Start the transforms that the core has queued."""
        jobs = self._running.broker.transforms
        while jobs:
            job = jobs.popleft()
            self._running.broker.counters.transforms_wanted += 1
            self._pool.begin(job.client.id, job.work, partial(self._end, job))
            self._look_later(job, is_warm=self._pool.is_warm)

    def prepare(self) -> None:
        """Start a spare process in advance, because a policy that transforms bodies is in use."""
        self._pool.prepare()

    def _look_later(self, job: TransformJob, *, is_warm: bool) -> None:
        self._running.loop.call_later(_LOOK_S, self._look, job, is_warm)

    def _look(self, job: TransformJob, is_warm: bool) -> None:  # noqa: FBT001 # the event loop passes positions only
        """Check at intervals, until the transform *job* is done, whether other messages have waited too long for it.

        The core decides (``TransformJob.then``) and withholds the message if so. Time counts only from the moment when
        the pool's first process has started.
        """
        running = self._running
        if not job.is_pending or running.failure is not None or running.is_closed:
            return
        now = running.clock.now()
        if is_warm:
            running.broker.on_answer(job, None, now)
            self._flush_soon()
        elif self._pool.is_warm:
            is_warm = True
            job.wait_from(now)
        if job.is_pending:
            self._look_later(job, is_warm=is_warm)

    def _end(self, job: TransformJob, result: bytes | Fault) -> None:
        running = self._running
        running.broker.counters.transforms = self._pool.performed
        if running.failure is None and not running.is_closed:
            running.broker.on_answer(job, result, running.clock.now())
            self._flush_soon()

    async def close(self) -> None:
        """Stop the processes."""
        await self._pool.close()
        await asyncio.sleep(0)
