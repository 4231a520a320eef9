"""Process pool for transforms: a few worker processes that can be killed and replaced. A shell, with asyncio and time.

Rule: counted bytes and pixels decide which work is begun. The last resort is a limit of core time for one piece of work
(half a second, the paper's time-out in 4.3): beyond it the worker is killed, the notification is withheld, and the
reason is logged. Waiting does not count.
Rule: a spare process stands ready, with everything imported, so that a killed one is replaced at once.
Rule: equal work is done once, if its result is cached or another caller waits for it.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Hashable
from contextlib import suppress

from whimbrel.language.policies.limits import DEFAULT_POLICY_LIMITS, PolicyLimits
from whimbrel.shape.faults import Fault
from whimbrel.shape.transforms import Work
from whimbrel.shape.work_queue import ResultCache, WorkQueue
from whimbrel.shape.worker import FAULTS, LENGTH, OUT_OF_TIME, encode_request

__all__ = ["TIME_OUT_S", "TransformPool"]

TIME_OUT_S = 0.5
"""Most core time of one piece of work, in seconds."""
_START_S = 30.0
_STUCK_S = 60.0
"""Seconds without an answer after which a worker is stuck, whatever core time it took."""


class TransformPool:
    """Pool of processes that perform transforms; they are started on first use."""

    def __init__(
        self,
        *,
        processes: int = 2,
        spares: int = 1,
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
        self._is_closed = False
        self._wake = asyncio.Event()
        self._ready = _ReadyProcesses(spares)
        self._at_work: set[Process] = set()
        self.performed = 0
        """Pieces of work that ended, failed ones included; results from the cache do not count."""
        self.killed = 0

    def begin(self, device: Hashable, work: Work, then: Callable[[bytes | Fault], None]) -> None:
        """Queue *work*; *then* is called with its result or fault, except if the pool is closed before."""
        loop = asyncio.get_running_loop()
        found = self._asked_for(device, work)
        if not isinstance(found, asyncio.Future):
            loop.call_soon(self._end, then, found)
        else:
            found.add_done_callback(lambda done: self._end(then, done.result()))

    def _end(self, then: Callable[[bytes | Fault], None], result: bytes | Fault) -> None:
        if not self._is_closed:
            then(result)

    def _asked_for(self, device: Hashable, work: Work) -> bytes | Fault | asyncio.Future[bytes | Fault]:
        """Return the result of *work* if it is cached, a fault if the queue is full, else the future for equal work."""
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
        return result

    async def perform(self, device: Hashable, work: Work) -> bytes | Fault:
        """Perform *work* for *device* and return the new body, or the fault."""
        found = self._asked_for(device, work)
        if not isinstance(found, asyncio.Future):
            return found
        return await asyncio.shield(found)  # a caller that is cancelled must not cancel it for the others

    async def close(self) -> None:
        """End the processes; callers of ``perform`` get ``OVERLOADED``, the callbacks of ``begin`` are not called."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._ready.close()
        for result in self._results.values():
            result.set_result(Fault.OVERLOADED)
        self._results.clear()

    @property
    def spares(self) -> int:
        """Idle processes that are ready to replace one at work."""
        return len(self._ready)

    @property
    def pids_at_work(self) -> list[int]:
        """Ids of the processes that perform transforms, or wait for the next one."""
        return [process.pid for process in self._at_work]

    @property
    def is_warm(self) -> bool:
        """Whether a process has been started: before that, work waits for the start for longer than it takes."""
        return self._ready.has_started

    def prepare(self) -> None:
        """Start the spare processes now, since work is expected."""
        self._ready.fill()

    async def ready(self) -> None:
        """Wait until no spare process is being started any more."""
        await self._ready.wait_until_filled()

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
                    process = await self._ready.take()
                    if process is not None:
                        self._at_work.add(process)
                result = Fault.DECODER if process is None else await self._ask(process, work)
                if result in {Fault.TIME_OUT, Fault.DECODER} and process is not None:
                    self.killed += 1
                    self._at_work.discard(process)
                    await _kill(process)
                    process = None
                self._settle(key, result)
        finally:
            if process is not None:
                self._at_work.discard(process)
                await _kill(process)

    async def _ask(self, process: Process, work: Work) -> bytes | Fault:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_STUCK_S):
                process.stdin.write(encode_request(work, self._limits, self._time_out_s))
                await process.stdin.drain()
                (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
                if not 0 < length <= 1 + 2 * max(len(work.body), 1 << 20):  # no transform lengthens a body that much
                    return Fault.DECODER
                answer = await process.stdout.readexactly(length)
        except TimeoutError:
            return Fault.TIME_OUT
        except (asyncio.IncompleteReadError, OSError):  # it died
            return Fault.TIME_OUT if await _ended_by(process) == OUT_OF_TIME else Fault.DECODER
        except Exception:  # noqa: BLE001 # a frame that cannot be written: others go on
            return Fault.DECODER
        if not answer[0]:
            return answer[1:]
        return FAULTS[answer[0] - 1] if answer[0] <= len(FAULTS) else Fault.DECODER

    def _settle(self, key: bytes, result: bytes | Fault) -> None:
        self.performed += 1
        self._queue.done(key)
        if isinstance(result, bytes):
            self._cache.put(key, result)
        waiting = self._results.pop(key, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(result)


class _ReadyProcesses:
    """Started processes that wait for work; *wanted* of them are kept ready."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._waiting: asyncio.Queue[Process | None] = asyncio.Queue()
        self._starting: set[asyncio.Task[None]] = set()
        self._asked = 0
        self.has_started = False

    def __len__(self) -> int:
        return self._waiting.qsize()

    async def take(self) -> Process | None:
        """Return a ready process and start another in its place; None if none could be started."""
        self._asked += 1
        try:
            self.fill()
            return await self._waiting.get()
        finally:
            self._asked -= 1
            self.fill()

    async def wait_until_filled(self) -> None:
        """Wait until no process is being started any more."""
        while self._starting:
            await asyncio.gather(*self._starting)

    async def close(self) -> None:
        """End the ready processes, and those that are being started."""
        self._wanted = 0
        starting = list(self._starting)
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
        while not self._waiting.empty():
            process = self._waiting.get_nowait()
            if process is not None:
                await _kill(process)

    def fill(self) -> None:
        """Start the missing processes: for *wanted* and for each waiting caller."""
        while len(self) + len(self._starting) < self._wanted + self._asked:
            task = asyncio.create_task(self._start_one())
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _start_one(self) -> None:
        self._waiting.put_nowait(await _start_process())
        self.has_started = True


async def _start_process() -> Process | None:
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
        await _kill(process)
        return None
    except asyncio.CancelledError:
        await _kill(process)
        raise
    return process


async def _ended_by(process: Process) -> int | None:
    """Return the signal that ended a process which closed its pipes; None if it exited or still runs."""
    try:
        async with asyncio.timeout(1.0):
            code = await process.wait()
    except TimeoutError:
        return None
    return -code if code < 0 else None


async def _kill(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
