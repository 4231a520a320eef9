"""The account of a ward over a crash: the outcome of every copy of every notification, through real sockets.

Doctors have sessions that outlive their connections and acknowledge everything. Half way the broker is killed (SIGKILL)
and started again on its data; doctors and publisher connect again, and the publisher sends again what was not
acknowledged. At the end the log must name one outcome for each copy, and the doctors must have received what it says.
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
"""Seconds after which every fifth notification expires."""
_FIFTH = 5
_MAX_TAIL_S = 300.0
_CONNECT_S = 300.0
_AGAIN_S = 0.1
_SHOWN = 20
"""Copies that do not fit and are named."""


def make_account(**settings: Any) -> dict[str, Any]:  # noqa: ANN401 # of ``OverheadRun``
    """Publish to doctors over a crash of their broker; return the row."""
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
    """Publish at the rate of the run, and kill the broker half way."""
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
    """Write and read; connect again when the broker is gone."""
    if publisher.go_on(wait_s):
        return
    try:
        publisher.open()
    except OSError:
        time.sleep(min(wait_s, _AGAIN_S))


def _wait_until_quiet(broker: BrokerRun, publisher: Publisher, crowds: Sequence[CrowdProcess]) -> None:
    """Wait until the broker accepted everything, every doctor is back, and nothing is held for one.

    A pause would prove nothing: on a busy machine a picture may be seconds in the making.
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
    """Return the outcomes of all copies, the number of those that do not fit, and the first of these by name."""
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
