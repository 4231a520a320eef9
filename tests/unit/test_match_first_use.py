"""The first use: a service does not wait for the kernels."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from whimbrel.match import first_use
from whimbrel.match.first_use import Kernels
from whimbrel.match.index.packer import PackingProcess, PackingProcessError
from whimbrel.match.index.parts import Part


class _Child:
    """A process that compiles, as far as ``Kernels`` looks at it."""

    def __init__(self, code: int = 0) -> None:
        self.code, self.ended = code, False

    def wait(self, timeout: float | None = None) -> int:
        del timeout
        return self.code

    def poll(self) -> int | None:
        return self.code if self.ended else None

    def terminate(self) -> None:
        self.ended = True


class _Packing:
    def __init__(self) -> None:
        self.packed: list[Sequence[Part]] = []

    def __call__(self, parts: Sequence[Part]) -> None:
        self.packed.append(parts)

    def close(self) -> None:
        pass


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what was done: kernels are neither compiled nor loaded here."""
    found: list[str] = []
    monkeypatch.setattr(first_use, "is_compiled", lambda: False)
    monkeypatch.setattr(first_use, "_load_numba_alone", lambda: None)
    monkeypatch.setattr(first_use, "load_kernels", lambda: found.append("loaded"))
    return found


def _kernels(monkeypatch: pytest.MonkeyPatch, child: _Child) -> tuple[Kernels, list[tuple[str, str]], _Packing]:
    said: list[tuple[str, str]] = []
    packing = _Packing()
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: child)
    monkeypatch.setattr("whimbrel.match.first_use.threading.Thread", _AtOnce)
    return Kernels(cast("PackingProcess", packing), say=lambda *each: said.append(each)), said, packing


class _AtOnce:
    def __init__(self, *, target: Callable[..., None], args: tuple[Any, ...], name: str, daemon: bool) -> None:
        del name, daemon
        self._target, self._args = target, args

    def start(self) -> None:
        self._target(*self._args)


def test_a_service_says_that_a_child_compiles(monkeypatch: pytest.MonkeyPatch, done: list[str]) -> None:
    """An operator who sees filters matched slowly must know why, and when it is over."""
    kernels, said, packing = _kernels(monkeypatch, _Child())
    kernels.begin()
    assert [level for level, _ in said] == ["info", "info"]
    assert "once on this machine" in said[0][1]
    assert said[1][1] == "the matcher is compiled"
    assert done == []
    kernels([])
    kernels([])
    assert (done, len(packing.packed)) == (["loaded"], 2)


def test_a_child_that_fails_is_told_and_packing_goes_on(monkeypatch: pytest.MonkeyPatch, done: list[str]) -> None:
    """Without the child the process that packs compiles for itself, as it did before."""
    kernels, said, packing = _kernels(monkeypatch, _Child(code=9))
    kernels.begin()
    assert said[-1][0] == "warning"
    kernels([])
    assert (done, len(packing.packed)) == (["loaded"], 1)


def test_a_service_loads_the_kernels_of_places_when_it_asks(monkeypatch: pytest.MonkeyPatch, done: list[str]) -> None:
    """Beside its event loop, once; few brokers ever ask."""
    kernels, _, _ = _kernels(monkeypatch, _Child())
    monkeypatch.setattr("whimbrel.match.first_use._load_numba_alone", lambda: done.append("numba"))
    monkeypatch.setattr("whimbrel.match.first_use.load_place_kernels", lambda: done.append("places"))
    assert [kernels.has_places() for _ in range(2)] == [True, True]
    assert done == ["numba", "places"]


def test_a_broker_goes_on_without_the_kernels_of_places(monkeypatch: pytest.MonkeyPatch, done: list[str]) -> None:
    """Places are asked one by one then, which an operator is told."""
    kernels, said, _ = _kernels(monkeypatch, _Child())
    monkeypatch.setattr("whimbrel.match.first_use._load_numba_alone", lambda: done.append("numba"))
    monkeypatch.setattr("whimbrel.match.first_use.load_place_kernels", lambda: int("no"))
    assert [kernels.has_places() for _ in range(2)] == [False, False]
    assert said[-1][0] == "warning"
    assert "one by one" in said[-1][1]


def test_a_service_that_stops_waits_for_no_kernels(monkeypatch: pytest.MonkeyPatch, done: list[str]) -> None:
    """Ctrl-C in the first minute must not take a minute."""
    child = _Child()
    kernels, _, packing = _kernels(monkeypatch, child)
    kernels.begin()
    kernels.stop_compiling()
    assert child.ended
    with pytest.raises(PackingProcessError, match="the service stops"):
        kernels([])
    assert (done, packing.packed) == ([], [])


def test_a_broker_loads_neither_numba_nor_arrow() -> None:
    """They are half of the memory of an idle broker, which few content filters never need."""
    code = (
        "import sys, whimbrel.broker.shell.server; from whimbrel.match.matcher import Interest, Matcher;"
        "m = Matcher(); m.add('a', Interest(filter_text='pulse > 110')); assert m.match_parts('t', {'pulse': 111});"
        "print(sorted({'numba', 'llvmlite', 'pyarrow'} & sys.modules.keys()))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
