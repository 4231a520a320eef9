"""Preparation: stored filters beyond what can be asked one by one are packed before anybody is let in."""

from __future__ import annotations

from typing import cast

from whimbrel.broker.shell.preparation import MAX_UNPACKED, Preparation
from whimbrel.broker.state.routes import Routes


class _Routes:
    def __init__(self, unpacked: int) -> None:
        self.unpacked = unpacked


def _preparation(unpacked: int) -> tuple[Preparation, _Routes]:
    routes = _Routes(unpacked)
    preparation = Preparation()
    preparation.pack(cast("Routes", routes))
    return preparation, routes


def test_no_client_is_let_in_before_everything_is_restored() -> None:
    """It would be told that its session is not there."""
    preparation = Preparation()
    assert "being restored" in str(preparation.reason)
    assert preparation.look(301_000_000) is None
    assert preparation.reason is not None


def test_few_filters_keep_nobody_out() -> None:
    """The plain way bears them, and a client would wait for nothing."""
    assert _preparation(MAX_UNPACKED)[0].reason is None


def test_many_filters_keep_clients_out_until_they_are_packed() -> None:
    """Each publication would take longer than a turn of the loop may."""
    preparation, routes = _preparation(20_000)
    assert "20,000 stored filters" in str(preparation.reason)
    assert preparation.look(1_000_000) is None
    routes.unpacked = 3
    assert preparation.look(2_000_000) == (
        "info", "the stored filters are packed after 2.0 s: clients may connect",
    )  # fmt: skip
    assert preparation.reason is None
    assert preparation.look(3_000_000) is None


def test_a_broker_that_cannot_pack_serves_slowly() -> None:
    """A slow broker is better than none."""
    preparation, _ = _preparation(20_000)
    news = preparation.look(301_000_000)
    assert news is not None
    assert news[0] == "warning"
    assert preparation.reason is None
