"""``--core-seconds N``: the N costliest tests, by the time that their processes kept a core busy.

The suite has a budget of core seconds, and wall clock does not show who spends it: most of the cost is in brokers, Java
and Python's workers, and some of those outlive the test that started them. So the whole tree of processes is counted.
Functions are shown, not their parameters: two hundred seeds of 0.1 s are what to look for.
Rule: a process that leaves the tree (its parent died first) is not counted.
"""

from __future__ import annotations

import os
import resource
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

__all__ = ["CoreSeconds"]

_NAME = "core_seconds"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_OWN_AND_ENDED = slice(11, 15)
"""User and system time of a process and of its ended children, in /proc/PID/stat after the name."""


class CoreSeconds:
    """Measures in each worker, and adds up and prints where the terminal is."""

    def __init__(self, shown: int) -> None:
        self._shown = shown
        self._began = 0.0
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._tests: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """Read the clock before the fixtures of a test are made."""
        self._began = _spent_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Any:
        """Put what was spent into the last report of a test, which xdist takes to the terminal."""
        report = yield
        if call.when == "teardown":
            report.user_properties.append((_NAME, _spent_s() - self._began))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add it up."""
        function = report.nodeid.partition("[")[0]
        for name, value in report.user_properties:
            if name == _NAME and report.when == "teardown":
                self._spent[function] += float(str(value))
                self._tests[function] += 1

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the costliest."""
        terminalreporter.section(f"{sum(self._spent.values()):,.0f} core seconds")
        costliest = sorted(self._spent.items(), key=lambda each: -each[1])
        for function, seconds in costliest[: self._shown]:
            terminalreporter.write_line(f"{seconds:8.2f} s {self._tests[function]:5d} × {function}")


def _spent_s() -> float:
    """Return the core seconds of this process and of all below it, ended or not."""
    own, ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    ticks, waiting = 0, _children(os.getpid())
    while waiting:
        process = waiting.pop()
        try:
            _, _, stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")
        except OSError:  # it has just ended
            continue
        ticks += sum(map(int, stat.split()[_OWN_AND_ENDED]))
        waiting += _children(process)
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + ticks / _TICKS_PER_S


def _children(process: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += map(int, thread.read_text(encoding="utf-8").split())
        except OSError:  # so
            continue
    return found
