"""Health over HTTP: a broker that refuses publications does not answer that all is well."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from whimbrel.broker.shell.disk.log_truncator import LogTruncator
from whimbrel.broker.shell.operate.health import answer
from whimbrel.broker.shell.preparation import Preparation
from whimbrel.broker.shell.running import Running


def _healthz(*, failure: str | None = None, is_refusing: bool = False, is_short: bool = False) -> tuple[int, bytes]:
    broker = SimpleNamespace(is_refusing=is_refusing, is_short=is_short)
    running = cast("Running", SimpleNamespace(failure=failure, broker=broker))
    preparation = cast("Preparation", SimpleNamespace(reason=None))
    found = answer(running, preparation, cast("LogTruncator", None), "GET", "/healthz")
    return found.status, found.body


def test_a_broker_that_takes_publications_is_well() -> None:
    """A supervisor acts on anything else."""
    assert _healthz() == (200, b"ok\n")


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ({"is_short": True}, b"nearly full"),
        ({"is_refusing": True}, b"cannot be written to"),
        ({"is_refusing": True, "is_short": True}, b"cannot be written to"),
        ({"failure": "the log is broken"}, b"cannot be written to"),
    ],
)
def test_a_broker_that_refuses_publications_says_why(trouble: dict[str, bool], words: bytes) -> None:
    """It answered 200 while the disk was nearly full, so nobody was told that publishers were refused."""
    status, body = _healthz(**trouble)  # type: ignore[arg-type]  # one of its three arguments
    assert status == 503
    assert words in body
