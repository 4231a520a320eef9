"""The outcome of every copy of every notification in a ward whose broker crashes, through real sockets.

Doctors have persistent sessions and acknowledge everything. Half way through the run, the broker is killed (SIGKILL)
and restarted with its data. Doctors and publisher reconnect, and the publisher sends again what was not acknowledged.
At the end the log must have exactly one outcome for each copy, and the doctors must have received the delivered ones.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

from whimbrel.log.reader import read
from whimbrel.sim.ward.broker_run import NODE, BrokerRun
from whimbrel.sim.ward.intensive_care import SUBJECT
from whimbrel.sim.ward.overhead.client_processes import CrowdProcess, Publisher
from whimbrel.sim.ward.overhead.copy_ends import fold_copies, judge_copies
from whimbrel.sim.ward.overhead.overhead_run import HOST, OverheadRun, crowd_jobs

__all__ = ["make_account"]

_EXPIRY_S = 3_600
_SHORT_S = 1
"""Message expiry of every fifth notification, in seconds."""
_FIFTH = 5
_MAX_TAIL_S = 300.0
_CONNECT_S = 300.0
_AGAIN_S = 0.1
_SHOWN = 20
"""Most inconsistent copies that the result names."""


def make_account(**settings: Any) -> dict[str, Any]:  # noqa: ANN401 # of ``OverheadRun``
    """Publish to doctors across a crash of their broker; return the result row."""
    run, begun = OverheadRun(qos=1, **settings), os.times()
    crowds: list[CrowdProcess] = []
    with tempfile.TemporaryDirectory(prefix="whimbrel-lab-") as folder:
        with BrokerRun(Path(folder), host=HOST, settings={}) as broker:
            try:
                jobs = crowd_jobs(run, broker.port, expiry_s=_EXPIRY_S)
                crowds += [CrowdProcess(job) for job in jobs]
                assert run.unit.bodies
                for crowd in crowds:
                    crowd.hear_until("ready")
                publisher = Publisher(lambda: socket.create_connection((HOST, broker.port), timeout=_CONNECT_S))
                restart = Thread(target=_restart, args=(broker,))
                _publish(run, publisher, restart)
                restart.join()
                _wait_until_quiet(broker, publisher, crowds)
                for crowd in crowds:
                    crowd.say({"end": True})
                doctors: dict[str, Any] = {}
                for crowd in crowds:
                    doctors |= crowd.hear_until("doctors")
                publisher.close()
            finally:
                for crowd in crowds:
                    crowd.end()
        row = _account(broker.log, doctors)
    return row | {
        "policy": run.policy,
        "doctors": run.doctors,
        "per_minute": run.per_minute,
        "core_s": sum(os.times()[:4]) - sum(begun[:4]),
    }


def _restart(broker: BrokerRun) -> None:
    broker.kill()
    broker.start()


def _publish(run: OverheadRun, publisher: Publisher, restart: Thread) -> None:
    """Publish at the rate of the run; start the restart of the broker half way through."""
    every_s, begun_s = 60.0 / run.per_minute, time.monotonic()
    bodies, total = run.bodies(), round(run.seconds * run.per_minute / 60.0)
    for number in range(total):
        body = next(bodies)
        while (left_s := begun_s + number * every_s - time.monotonic()) > 0:
            _go_on(publisher, left_s)
        publisher.publish(*body, expiry_s=_SHORT_S if number % _FIFTH == 0 else None)
        if number == total // 2:
            restart.start()


def _go_on(publisher: Publisher, wait_s: float) -> None:
    """Write and read; reconnect if the broker is gone."""
    if publisher.go_on(wait_s):
        return
    try:
        publisher.open()
    except OSError:
        time.sleep(min(wait_s, _AGAIN_S))


def _wait_until_quiet(broker: BrokerRun, publisher: Publisher, crowds: Sequence[CrowdProcess]) -> None:
    """Wait until the broker has accepted everything, every doctor is back, and the hold is empty.

    A pause without messages proves nothing: on a busy machine, making a picture may take seconds.
    """
    until_s = time.monotonic() + _MAX_TAIL_S
    while time.monotonic() < until_s:
        _go_on(publisher, _AGAIN_S)
        if not publisher.has_all_acknowledged:
            continue
        for crowd in crowds:
            crowd.say({"count": True})
        away = sum(crowd.hear_until_line("count")["away"] for crowd in crowds)
        if not away and not broker.metrics()["whimbrel_held_notifications"]:
            return


def _account(log: Path, doctors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outcomes of all copies, the number of inconsistent copies, and descriptions of the first of these."""
    copies = fold_copies(read(log, NODE), NODE, below=f"{SUBJECT}/")
    arrived = {name: Counter(number for number, _, _ in told["arrivals"]) for name, told in doctors.items()}
    marked = {name: Counter(told["marked"]) for name, told in doctors.items()}
    wrong = list(judge_copies(copies, arrived, marked))
    return {
        "account": dict(Counter(each.value for ends in copies.ends.values() for each in ends)),
        "expired_without_receipt": sum(copy not in copies.receipts for copy in copies.ends),
        "published": len(copies.published),
        "due": len(copies.published) * len(doctors),
        "unaccounted": len(wrong),
        "wrong": wrong[:_SHOWN],
        "published_twice": len(copies.published) - len({each.subject for each in copies.published.values()}),
        "marked": sum(each.total() for each in marked.values()),
        "repeated": sum(count - 1 for each in arrived.values() for count in each.values() if count > 1),
    }
