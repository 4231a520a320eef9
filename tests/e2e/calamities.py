"""Calamities: what happens to a broker's machine beside crashes.

Clocks are set, the process is paused, the disk is full, the log is cut and the view is lost.
Rule: nothing of whimbrel is imported, as in ``crash_checker``; where files stand is what docs/reference/log.md says.
Rule: what is done here takes nothing away that was acknowledged, or is undone when the broker has refused to start.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from random import Random

from tests.e2e.broker_process import BrokerProcess
from tests.e2e.stepped_clock import SteppedClock

__all__ = ["Calamities"]

_NODE = "node-1"
_DAY_S = 86_400
_CRC_BYTES = 4


class Calamities:
    """What happens to *broker* and its *clock*, drawn from *rng*."""

    def __init__(self, broker: BrokerProcess, clock: SteppedClock, rng: Random) -> None:
        self._broker, self._clock, self._rng = broker, clock, rng
        self.count: Counter[str] = Counter()
        """How often each happened."""
        self.violations: list[str] = []

    async def strike(self) -> None:
        """Let something happen to a broker that runs."""
        strokes: list[Callable[[], Awaitable[None]]] = [self._step, self._jump, self._pause, self._fill]
        await self._rng.choice(strokes)()

    async def _step(self) -> None:
        """Set the clock, a little or by days back; what was set by days is set right again."""
        seconds = -self._clock.wall_s
        if abs(seconds) < _DAY_S:
            seconds = self._rng.choice((-3 * _DAY_S, -30.0, -2.0, 2.0, 30.0))
        self._clock.step(wall_s=seconds)
        self.count["clock steps"] += 1

    async def _jump(self) -> None:
        """Let the clock be wrong by a week for a moment."""
        self._clock.step(wall_s=7 * _DAY_S)
        await asyncio.sleep(self._rng.random())
        self._clock.step(wall_s=-7 * _DAY_S)
        await asyncio.sleep(0.3)  # it is seen to be right before the broker dies
        self.count["clock jumps"] += 1

    async def _pause(self) -> None:
        os.kill(self._broker.pid, signal.SIGSTOP)
        await asyncio.sleep(self._rng.random() * 1.5)
        os.kill(self._broker.pid, signal.SIGCONT)
        self.count["pauses"] += 1

    async def _fill(self) -> None:
        """Let no file grow any more, for a while; a broker that dies meanwhile has room again when it starts."""
        _, hard = resource.prlimit(self._broker.pid, resource.RLIMIT_FSIZE)
        size = self._segments()[-1].stat().st_size + self._rng.randrange(4_096)
        resource.prlimit(self._broker.pid, resource.RLIMIT_FSIZE, (size, hard))
        await asyncio.sleep(self._rng.random() * 2)
        if self._rng.random() < 0.7:
            resource.prlimit(self._broker.pid, resource.RLIMIT_FSIZE, (hard, hard))
        self.count["full disks"] += 1

    # -- while it is dead --------------------------------------------------------------------------------------------

    def spoil(self) -> None:
        """Let something happen to the files of a broker that is dead, and start it."""
        self._rng.choice((self._cut, self._lose_view, self._tear, self._nothing))()
        self._broker.start()

    def _nothing(self) -> None:
        pass

    def _cut(self) -> None:
        """Remove what the view has already, as retention does."""
        segments, applied = self._segments(), self._applied()
        for path, follower in pairwise(segments):
            if int(follower.stem) - 1 <= applied:
                path.unlink()
                self.count["cut segments"] += 1

    def _lose_view(self) -> None:
        """Remove the view: it is made again of a whole log or a checkpoint; else the broker must not start."""
        first = self._segments()[0]
        checkpoints = [int(path.stem.partition("-")[2].partition(".")[0]) for path in first.parent.glob("checkpoint-*")]
        is_cut = int(first.stem) > 1 + max(checkpoints, default=0)
        kept = self._broker.data.with_name("kept")
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(self._broker.data, kept, ignore=shutil.ignore_patterns("control"))  # a socket
        for path in self._broker.data.glob("view-*"):
            path.unlink()
        self.count["lost views"] += 1
        if not is_cut:
            return
        try:
            self._broker.start()
        except AssertionError as refused:
            if "--accept-loss" not in str(refused):
                self.violations.append(f"a broker without its view did not start, but said: {refused}")
        else:
            self._broker.kill()
            self.violations.append("a broker whose log was cut started without its view")
        shutil.rmtree(self._broker.data)
        kept.rename(self._broker.data)

    def _tear(self) -> None:
        """Leave half a record at the end of the log."""
        with self._segments()[-1].open("ab") as stream:
            stream.write(self._rng.randbytes(self._rng.randint(1, 200)))
        self.count["torn tails"] += 1

    def _segments(self) -> list[Path]:
        return sorted((self._broker.data / "log" / "segments" / _NODE).glob("*.seg"))

    def _applied(self) -> int:
        """Return how much of the log the view has."""
        path = self._broker.data / f"view-{_NODE}.sqlite"
        if not path.exists():
            return 0
        with closing(sqlite3.connect(path)) as connection:
            (sealed,) = connection.execute("SELECT value FROM meta WHERE name = 'applied'").fetchone()
        return int(sealed[_CRC_BYTES:])
