"""Sentences that users read most: each was once a riddle (issue 23), and stays plain."""

from __future__ import annotations

import ast
import asyncio
import pickle
from pathlib import Path

import pytest
from broker_rig import Rig

import whimbrel
from whimbrel.broker.settings.fields import ConfigError
from whimbrel.client import Client, ClientClosedError
from whimbrel.client.interest import Interest
from whimbrel.client.messages import payload_of
from whimbrel.errors import InvalidValueError, Phrase, description_of
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
    with pytest.raises(ClientClosedError, match="Not connected: use "):  # and it does not wait for ever
        client.messages()


def test_what_a_client_is_given_wrongly_is_named() -> None:
    """Before anything is sent, in the words of the caller."""
    with pytest.raises(InvalidValueError, match=r"^QoS: found 3, allowed is 0, 1 or 2$"):
        Interest(topic_filter="a", qos=3)
    with pytest.raises(InvalidValueError, match=r"^this payload cannot be sent \(.*set is not JSON .*\): allowed are"):
        payload_of({1})  # type: ignore[arg-type] # that is the point
    with pytest.raises(InvalidValueError, match=r"^Client\(join=…\) needs a client_id: a session keeps"):
        Client(join=["ward"])


def test_a_session_that_cannot_be_created_says_what_to_try(tmp_path: Path) -> None:
    """The same words for one that exists and one that is forbidden: names are no secret to be guessed."""
    maker = Rig(tmp_path).client("maker")
    assert maker.ask("create", session="ann")["ok"]
    refused = maker.ask("create", session="ann")
    assert refused["reason"] == "it exists already, or you may not create it; try `session show`"


# -- found and allowed -----------------------------------------------------------------------------------------------


def test_a_value_has_quotes_and_a_description_none() -> None:
    """Nobody typed 'nothing' or '3 bytes'."""
    assert str(InvalidValueError("mode", "tak", "take or keep")) == "mode: found 'tak', allowed is take or keep"
    assert str(InvalidValueError("salt", Phrase("3 bytes"), "16 bytes")) == "salt: found 3 bytes, allowed is 16 bytes"
    assert str(InvalidValueError("id", None, "a text")) == "id: found nothing, allowed is a text"
    assert str(ConfigError("", "id", Phrase("two"), "one")) == "id: found two, allowed is one"


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "nothing"), (b"abc", "3 bytes"), ([1, 2], "a list of 2"), ({}, "an object"), (True, "a boolean")],
)
def test_what_is_not_shown_is_described(value: object, words: str) -> None:
    """In the words of JSON, which the sender wrote: not NoneType, dict or bool."""
    assert description_of(value) == words
    assert description_of(tmp := Path()) == f"a {type(tmp).__name__}"


def test_a_description_is_bounded_and_cannot_move_the_cursor() -> None:
    """It may quote what came over the wire."""
    shown = str(InvalidValueError("x", Phrase("\x1b[2J" + 9_000 * "y"), "z"))
    assert shown.startswith("x: found \\x1b[2Jyy")
    assert len(shown) < 250


def test_a_description_survives_pickling() -> None:
    """Errors come back from worker processes and from Spark."""
    error = InvalidValueError("x", Phrase("no file"), "a file")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 # our own


def test_no_description_is_quoted_as_if_a_user_had_typed_it() -> None:
    """In all of our code: a text that we wrote ourselves is a ``Phrase``, or the error has a sentence of its own."""
    place = {"InvalidValueError": 1, "ConfigError": 2}
    quoted = []
    for path in Path(whimbrel.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in place:
                continue
            at, names = place[call.func.id], {each.arg: each.value for each in call.keywords}
            found = call.args[at] if len(call.args) > at else names.get("found")
            is_ours = isinstance(found, ast.Constant) and isinstance(found.value, str) and found.value
            has_sentence = "sentence" in names or (call.func.id == "InvalidValueError" and len(call.args) > at + 2)
            if is_ours and not has_sentence:
                quoted.append(f"{path}:{call.lineno}")
    assert not quoted
