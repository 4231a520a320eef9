"""The pool of transforms: real processes, killed and replaced."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys

from PIL import Image

from whimbrel.language.policies.values import Compression, Level
from whimbrel.shape.faults import Fault
from whimbrel.shape.pool import TransformPool
from whimbrel.shape.transforms import Work

_OPENS_A_FILE = """
import errno
from whimbrel.shape import worker
worker._confine()
try:
    open("/etc/hostname")
except OSError as error:
    print(errno.errorcode[error.errno])
"""
_STARTS_A_PROCESS = """
import os
from whimbrel.shape import worker
worker._confine()
try:
    os.fork()
    print("it has started one")
except OSError as error:
    print("it may start none")
"""


def picture(side: int) -> bytes:
    """Return a JPEG."""
    out = io.BytesIO()
    Image.effect_noise((side, side), 50).convert("RGB").save(out, "JPEG", quality=95)
    return out.getvalue()


def test_equal_work_is_done_once_for_two_hundred_doctors() -> None:
    """They get the same bytes; another level is other work, and a bad body ends no process."""

    async def scenario() -> None:
        pool = TransformPool(processes=1, time_out_s=60)
        try:
            body = picture(64)
            work = Work(body, (Compression(Level.HALF),))
            results = await asyncio.gather(*(pool.perform(f"d{number}", work) for number in range(200)))
            assert len({*results}) == 1
            assert isinstance(results[0], bytes)
            assert len(results[0]) < len(body)
            assert pool.performed == 1
            assert await pool.perform("late", work) == results[0]
            broken = Work(body[:500], (Compression(Level.HALF),))
            assert await pool.perform("d", broken) is Fault.UNREADABLE
            quarter = await pool.perform("d", Work(body, (Compression(Level.QUARTER),)))
            assert isinstance(quarter, bytes)
            assert len(quarter) < len(results[0])
            assert (pool.performed, pool.killed) == (3, 0)
        finally:
            await pool.close()

    asyncio.run(scenario())


def test_what_takes_too_long_is_killed_and_replaced() -> None:
    """The last resort: it is withheld with its reason, and the next transform has a new process."""

    async def scenario() -> None:
        pool = TransformPool(processes=1, time_out_s=0.0)
        try:
            work = Work(picture(64), (Compression(Level.HALF),))
            assert await pool.perform("d", work) is Fault.TIME_OUT
            assert pool.killed == 1
            pool._time_out_s = 60  # nobody else changes it while it runs
            assert isinstance(await pool.perform("d", work), bytes)
        finally:
            await pool.close()

    asyncio.run(scenario())


def test_what_waits_too_long_in_line_is_refused_at_once() -> None:
    """A queue without a bound is memory without a bound."""

    async def scenario() -> None:
        pool = TransformPool(processes=1, max_jobs=0)
        try:
            assert await pool.perform("d", Work(picture(16), (Compression(Level.HALF),))) is Fault.OVERLOADED
        finally:
            await pool.close()

    asyncio.run(scenario())


def test_the_time_of_a_worker_is_its_core_time() -> None:
    """A busy machine must not make a policy withhold: a worker that was stopped for long has used no time."""

    async def scenario() -> None:
        pool = TransformPool(processes=1, time_out_s=0.2)
        try:
            work = Work(picture(64), (Compression(Level.HALF),))
            assert isinstance(await pool.perform("d", work), bytes)
            (worker,) = pool.pids_at_work
            os.kill(worker, signal.SIGSTOP)
            waiting = asyncio.ensure_future(pool.perform("d", Work(picture(65), (Compression(Level.HALF),))))
            await asyncio.wait([waiting], timeout=0.3)  # longer than its time
            os.kill(worker, signal.SIGCONT)
            assert isinstance(await waiting, bytes)
            assert pool.killed == 0
        finally:
            await pool.close()

    asyncio.run(scenario())


def test_a_spare_stands_ready_when_a_worker_is_killed() -> None:
    """To start one takes longer than most pictures do: the next copy must not wait for that."""

    async def scenario() -> None:
        pool = TransformPool(processes=1, time_out_s=0.0)
        try:
            work = Work(picture(64), (Compression(Level.HALF),))
            assert await pool.perform("d", work) is Fault.TIME_OUT
            await pool.ready()
            assert pool.spares == 1  # before anybody asks for it
            pool._time_out_s = 60  # nobody else changes it while it runs
            assert isinstance(await pool.perform("d", work), bytes)
        finally:
            await pool.close()

    asyncio.run(scenario())


def test_a_worker_can_open_and_write_no_file() -> None:
    """A decoder that a picture takes over has pipes and nothing else, as the module's first lines say."""
    done = subprocess.run([sys.executable, "-c", _OPENS_A_FILE], capture_output=True, text=True, check=True)
    assert done.stdout == "EMFILE\n"


def test_a_worker_can_start_no_process() -> None:
    """Root is bound by no limit of processes, and many a broker in a container is root: its workers are nobody."""
    done = subprocess.run([sys.executable, "-c", _STARTS_A_PROCESS], capture_output=True, text=True, check=True)
    assert done.stdout == "it may start none\n"
