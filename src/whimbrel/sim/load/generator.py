"""The generator: two processes that publish and subscribe, reused for all measurements."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from whimbrel.errors import InvalidValueError
from whimbrel.sim.load.board import Board
from whimbrel.sim.load.load import Idle, Latency, Load, LoadError, Throughput
from whimbrel.sim.load.processes import cpu_s
from whimbrel.sim.load.tally import STAMP
from whimbrel.sim.load.workers import (
    Published,
    come_back,
    publish_all,
    publish_paced,
    receive_all,
    stay_connected,
    subscribe_and_leave,
)

__all__ = ["Generator"]


class Generator:
    """Two processes that publish and subscribe, reused for all measurements."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="whimbrel-load-")))
        pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))
        self._pool = self._stack.enter_context(pool)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def throughput(
        self, load: Load, *, rounds: int = 1, pid: int | None = None, once_subscribed: Callable[[], None] | None = None
    ) -> Throughput:
        """Send *load* once per round, as fast as the broker accepts it; measure the CPU time of process *pid*."""
        path = Board.made(self._folder)
        board = Board(path)
        subscribers = self._pool.submit(receive_all, path, load) if load.subscribers else None
        try:
            while subscribers is not None and not board.is_ready:
                if subscribers.done():
                    subscribers.result()
                time.sleep(0.01)
            if once_subscribed is not None:
                once_subscribed()
            before = cpu_s(pid)
            published = self._published(subscribers, self._pool.submit(publish_all, path, load, rounds))
            after = cpu_s(pid)
        finally:
            board.over()
        receiving_s = subscribers.result() if subscribers is not None else 0.0
        copies = load.copies
        return Throughput(
            sent=published.sent,
            expected=published.sent * copies if copies else published.sent,
            arrived=board.count if copies else published.acknowledged,
            seconds=published.seconds,
            broker_cpu_s=None if before is None or after is None else after - before,
            generator_cpu_s=published.cpu_s + receiving_s,
        )

    @staticmethod
    def _published(subscribers: Future[float] | None, publishers: Future[Published]) -> Published:
        while not publishers.done():
            if subscribers is not None and subscribers.done():
                subscribers.result()  # it ended too early: raises
            time.sleep(0.01)
        return publishers.result()

    def latency(self, load: Load, *, rate: float, pid: int | None = None) -> Latency:
        """Send *load* at *rate* per second; return percentiles of the delivery times, and the CPU time of *pid*."""
        if load.size_bytes < STAMP.size:
            raise InvalidValueError("length of bodies", load.size_bytes, f"at least {STAMP.size} bytes, for the time")
        before = cpu_s(pid)
        times = sorted(self._pool.submit(publish_paced, load, rate).result())
        after = cpu_s(pid)
        if not times:
            raise LoadError("no publications", "some")
        return Latency(
            rate=rate,
            expected=load.count * load.subscribers,
            arrived=len(times),
            p50_us=times[len(times) // 2] / 1e3,
            p99_us=times[int(len(times) * 0.99)] / 1e3,
            cpu_us=None if before is None or after is None else (after - before) / len(times) * 1e6,
        )

    def leave(self, load: Load, client_id: str) -> None:
        """Subscribe in a persistent session and disconnect."""
        self._pool.submit(subscribe_and_leave, load, client_id).result()

    def collect(self, load: Load, client_id: str) -> tuple[int, float]:
        """Reconnect that subscriber; return the number of deliveries, and the seconds until all were acknowledged."""
        return self._pool.submit(come_back, load, client_id).result()

    def idle(self, load: Load, *, connections: int, pid: int) -> Idle:
        """Measure the memory that the process *pid* needs for *connections* idle clients."""
        return self._pool.submit(stay_connected, load, connections, pid).result()
