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
from itertools import product
from pathlib import Path
from threading import Thread
from typing import Any

from whimbrel.log.reader import read
from whimbrel.model.facts import Outcome, Receipt
from whimbrel.model.notification import Notification
from whimbrel.sim.ward.broker_run import NODE, BrokerRun
from whimbrel.sim.ward.intensive_care import SUBJECT
from whimbrel.sim.ward.overhead.client_processes import CrowdProcess, Publisher
from whimbrel.sim.ward.overhead.overhead_run import HOST, Idleness, OverheadRun, crowd_jobs

__all__ = ["make_account"]

_EXPIRY_S = 3_600
_SHORT_S = 1
"""Seconds after which every fifth notification expires."""
_FIFTH = 5
_MAX_TAIL_S = 300.0
_CONNECT_S = 300.0
_AGAIN_S = 0.1


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
    """Wait until the broker accepted everything, every doctor is back, and nothing is left to do."""
    until_s, idle = time.monotonic() + _MAX_TAIL_S, Idleness(broker)
    while time.monotonic() < until_s:
        _go_on(publisher, _AGAIN_S)
        told = []
        for crowd in crowds:
            crowd.say({"count": True})
            told.append(crowd.hear_until_line("count"))
        is_busy = not publisher.has_all_acknowledged or any(each["away"] for each in told)
        if idle.look(sum(each["count"] for each in told), is_busy=is_busy):
            return


def _account(log: Path, doctors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outcomes of all copies, and the number of copies with none, with several or with a wrong one.

    A copy that nobody took before its expiry has no receipt: it has expired if the log goes on beyond that.
    """
    numbers: dict[int, int] = {}
    expires_at: dict[int, int | None] = {}
    outcomes: dict[tuple[int, str], list[Outcome]] = {}
    ends_at = 0
    for fact in read(log, NODE):
        if isinstance(fact, Notification) and (fact.subject or "").startswith(f"{SUBJECT}/"):
            numbers[fact.seq] = int((fact.subject or "").rsplit("/", 1)[1])
            expires_at[fact.seq], ends_at = fact.expires_at, max(ends_at, fact.published_at)
        elif isinstance(fact, Receipt) and fact.device in doctors:
            outcomes.setdefault((fact.notification.seq, fact.device), []).append(fact.outcome)
            ends_at = max(ends_at, fact.handed_at)
    for seq, name in product(numbers, doctors):
        if (seq, name) not in outcomes and (expires_at[seq] or ends_at) < ends_at:
            outcomes[seq, name] = [Outcome.EXPIRED]
    arrived = {name: Counter(number for number, _, _ in told["arrivals"]) for name, told in doctors.items()}
    unaccounted = 0
    published: dict[int, list[int]] = {}
    for seq, number in numbers.items():  # one whose acknowledgement was lost was published twice
        published.setdefault(number, []).append(seq)
    for number, seqs in published.items():
        for name in doctors:
            found = [outcomes.get((seq, name), []) for seq in seqs]
            unaccounted += sum(len(each) != 1 for each in found)
            ends = {end for each in found for end in each}
            is_received = arrived[name][number] > 0
            unaccounted += Outcome.DELIVERED in ends and not is_received
            unaccounted += ends == {Outcome.WITHHELD} and is_received
    return {
        "account": dict(Counter(each.value for found in outcomes.values() for each in found)),
        "published": len(numbers),
        "due": len(numbers) * len(doctors),
        "unaccounted": unaccounted,
        "repeated": sum(count - 1 for each in arrived.values() for count in each.values() if count > 1),
    }
