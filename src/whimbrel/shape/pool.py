"""The pool: a few processes that perform transforms, and can be killed and replaced. A shell: it awaits, by the clock.

Rule: counted bytes and pixels decide what is begun; wall time (500 ms, as the paper has it in 4.3) is the last resort:
what takes longer is killed, withheld, and said to be so.
Rule: equal work is done once, whether its result is known or a caller waits for it already.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Hashable
from contextlib import suppress

from whimbrel.language.policies.limits import DEFAULT_POLICY_LIMITS, PolicyLimits
from whimbrel.shape.cache import ResultCache
from whimbrel.shape.faults import Fault
from whimbrel.shape.transforms import Work
from whimbrel.shape.work_queue import WorkQueue
from whimbrel.shape.worker import FAULTS, LENGTH, framed

__all__ = ["TIME_OUT_S", "TransformPool"]

TIME_OUT_S = 0.5
_START_S = 30.0


class TransformPool:
    """Performs work in processes; started on first use."""

    def __init__(
        self,
        *,
        processes: int = 2,
        time_out_s: float = TIME_OUT_S,
        limits: PolicyLimits = DEFAULT_POLICY_LIMITS,
        cache_bytes: int = 64 << 20,
        max_jobs: int = 1_000,
        max_bytes: int = 64 << 20,
    ) -> None:
        self._count, self._time_out_s, self._limits = processes, time_out_s, limits
        self._cache = ResultCache(cache_bytes)
        self._queue = WorkQueue(max_jobs=max_jobs, max_bytes=max_bytes)
        self._results: dict[bytes, asyncio.Future[bytes | Fault]] = {}
        self._idle = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked: set[asyncio.Task[bytes | Fault]] = set()
        self._is_closed = False
        self._wake = asyncio.Event()
        self.performed = 0
        """How many transforms were made, not counting those that were known."""
        self.killed = 0

    def begin(self, device: Hashable, work: Work, then: Callable[[bytes | Fault], None]) -> None:
        """Have *work* done, and *then* called with what comes of it; not if the pool is closed before."""
        task = asyncio.get_running_loop().create_task(self.perform(device, work))
        self._asked.add(task)

        def end(done: asyncio.Task[bytes | Fault]) -> None:
            self._asked.discard(done)
            if not done.cancelled() and not self._is_closed:
                then(done.result())

        task.add_done_callback(end)

    async def perform(self, device: Hashable, work: Work) -> bytes | Fault:
        """Return what comes of *work* for *device*: a body, or why there is none."""
        key = work.key
        known = self._cache.get(key)
        if known is not None:
            return known
        if not self._queue.offer(device, key, work):
            return Fault.OVERLOADED
        result = self._results.get(key)
        if result is None:
            result = self._results[key] = asyncio.get_running_loop().create_future()
        self._start()
        return await asyncio.shield(result)  # one that gives up must not end it for the others

    async def close(self) -> None:
        """End the processes; each waiting caller is told that its work failed."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for result in self._results.values():
            result.set_result(Fault.OVERLOADED)
        self._results.clear()

    def _start(self) -> None:
        self._wake.set()
        if self._queue.jobs > self._idle and len(self._tasks) < self._count:
            task = asyncio.create_task(self._serve())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self) -> None:
        process: Process | None = None
        try:
            while True:
                taken = self._queue.take()
                if taken is None:
                    self._wake.clear()
                    self._idle += 1
                    try:
                        await self._wake.wait()
                    finally:
                        self._idle -= 1
                    continue
                key, work = taken
                if process is None:
                    process = await _started()
                result = Fault.ERROR if process is None else await self._ask(process, work)
                if result in {Fault.TIME_OUT, Fault.ERROR} and process is not None:
                    self.killed += 1
                    await _killed(process)
                    process = None
                self._settle(key, result)
        finally:
            if process is not None:
                await _killed(process)

    async def _ask(self, process: Process, work: Work) -> bytes | Fault:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._time_out_s):
                process.stdin.write(framed(work, self._limits))
                await process.stdin.drain()
                (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
                if not 0 < length <= 1 + 2 * max(len(work.body), 1 << 20):  # no transform makes that of it
                    return Fault.ERROR
                answer = await process.stdout.readexactly(length)
        except TimeoutError:
            return Fault.TIME_OUT
        except Exception:  # noqa: BLE001 # a process that died, or a frame that cannot be written: others go on
            return Fault.ERROR
        if not answer[0]:
            return answer[1:]
        return FAULTS[answer[0] - 1] if answer[0] <= len(FAULTS) else Fault.ERROR

    def _settle(self, key: bytes, result: bytes | Fault) -> None:
        self.performed += 1
        self._queue.done(key)
        if isinstance(result, bytes):
            self._cache.put(key, result)
        waiting = self._results.pop(key, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(result)


async def _started() -> Process | None:
    """Start a process; return it once it is ready, None if it cannot be started."""
    command = (sys.executable, "-m", "whimbrel.shape.worker")
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    except OSError:
        return None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_START_S):
            await process.stdout.readexactly(1)
    except (TimeoutError, asyncio.IncompleteReadError):
        await _killed(process)
        return None
    return process


async def _killed(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
