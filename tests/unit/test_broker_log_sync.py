"""Syncing the log from a thread: a server that closes while a sync waits for its turn ends without an error."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from whimbrel.broker.shell.disk.log_sync import LogSync
from whimbrel.broker.shell.disk.outage import Outage


def test_a_sync_that_is_cancelled_as_the_server_closes_is_no_error() -> None:
    """A timer may begin one between the last sync and the end of the threads; the log syncs what is left as it closes.

    The broker is not told of it either: it has none that a test could ask.
    """
    troubles: list[dict[str, Any]] = []

    async def story() -> None:
        loop, is_free = asyncio.get_running_loop(), threading.Event()
        loop.set_exception_handler(lambda _loop, context: troubles.append(context))
        pool = ThreadPoolExecutor(1)
        pool.submit(is_free.wait)
        running: Any = SimpleNamespace(loop=loop, broker=None)
        log: Any = SimpleNamespace(sync=lambda **_options: 7)
        keeper: Any = SimpleNamespace(space=None)
        syncing = LogSync(running, log, pool, lambda: None, keeper)
        syncing.write_now()
        pool.shutdown(wait=False, cancel_futures=True)
        is_free.set()
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(story())
    assert troubles == []


def test_an_outage_is_told_at_its_beginning_every_minute_and_at_its_end() -> None:
    """A line a second would fill the very disk; none would leave an operator in the dark."""
    outage, second = Outage(), 1_000_000
    assert outage.ends(0) is None
    told = [at for at in range(130) if outage.fails(at * second)]
    assert told == [0, 60, 120]
    assert outage.ends(130 * second) == 130
    assert outage.ends(131 * second) is None
    assert outage.fails(140 * second)
