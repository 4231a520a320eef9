"""Sentences that users read most: each was once a riddle (issue 23), and stays plain."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from whimbrel.client import Client, ClientClosedError
from whimbrel.client.interest import Interest
from whimbrel.errors import InvalidValueError
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.topics import check_topic_filter
from whimbrel.pipeline.plans import StreamPlan, settled_plan
from whimbrel.pipeline.show import head
from whimbrel.pipeline.stream.watching import lag_text


def test_how_far_tables_are_behind() -> None:
    """Nothing is behind by 0 numbers."""
    assert lag_text(0, "0.0 s") == "up to date"
    assert lag_text(2_048, "7.6 s") == "2,048 log records (7.6 s) behind"


@pytest.mark.parametrize("check", [check_topic_filter, lambda text: Interest(topic_filter=text)])
def test_a_topic_filter_says_what_is_wrong_once(check: object) -> None:
    """On the wire and in the client alike."""
    assert callable(check)
    with pytest.raises((ProtocolError, InvalidValueError)) as told:
        check("home/#/x")
    error = told.value
    sentence = error.reason if isinstance(error, ProtocolError) else str(error)
    assert sentence == "'home/#/x' is no topic filter: # may only be the last level"


def test_another_plan_names_the_option(tmp_path: Path) -> None:
    """Nobody wrote 900000000 anywhere."""
    path = tmp_path / "out" / "state" / "plan.json"
    path.parent.mkdir(parents=True)
    settled_plan(path, StreamPlan())
    with pytest.raises(InvalidValueError) as told:
        settled_plan(path, StreamPlan(window_us=900_000_000))
    assert str(told.value) == "This stream began with --window 1h; keep it, or choose another --out for 15m"


def test_no_dead_letters_are_good_news(tmp_path: Path) -> None:
    """A table that was never written is empty; a folder without tables says how to make them."""
    with pytest.raises(InvalidValueError, match="has no tables; `whimbrel pipeline run --out"):
        head(tmp_path, "latency", limit=1)
    (tmp_path / "latency").mkdir()
    with pytest.raises(InvalidValueError) as told:
        head(tmp_path, "dead_letters", limit=1)
    assert str(told.value) == "dead_letters is empty: nothing failed so far"


def test_a_client_that_was_never_entered_says_how() -> None:
    """Closed it was not."""
    client = Client()
    with pytest.raises(ClientClosedError) as told:
        asyncio.run(client.publish("a", "b"))
    assert str(told.value) == "Not connected: use `async with Client(…)`"
