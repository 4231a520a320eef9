"""``whimbrel publish`` and ``whimbrel subscribe``: what they refuse before they connect, and what they print."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from whimbrel.cli.main import main
from whimbrel.cli.options.connection import Connection
from whimbrel.cli.subscribe import _line
from whimbrel.client import Backoff, Message
from whimbrel.client.interest import Interest
from whimbrel.client.messages import payload_of, publication
from whimbrel.errors import FilterError, InvalidValueError
from whimbrel.mqtt.packets import SubscriptionRequest
from whimbrel.mqtt.properties import Properties, Property


@dataclass(frozen=True)
class Done:
    """What a finished command left behind."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process and an empty folder."""
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["whimbrel", *arguments])
        with pytest.raises(SystemExit) as exited:
            main()
        captured = capsys.readouterr()
        return Done(int(exited.value.code or 0), captured.out, captured.err)

    return invoke


# -- usage -----------------------------------------------------------------------------------------------------------


def test_a_bad_filter_is_shown_with_its_place(run: Run) -> None:
    """Before anything is sent: nobody needs a broker to see a slip."""
    done = run("subscribe", "a/#", "--filter", "level = 5", "--port", "1")
    assert done.code == 2
    assert done.err.endswith("  level = 5\n        ^\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("publish",),
        ("publish", "a", "body", "--lines"),
        ("publish", "a", "--file", "x", "--lines"),
        ("publish", "a", "b", "--property", "novalue"),
        ("publish", "a", "b", "--qos", "3"),
        ("publish", "a", "b", "--mqtt", "4"),
        ("publish", "a", "b", "--mqtt", "3.1.1", "--expiry", "5"),
        ("publish", "a", "b", "--password-file", "p"),
        ("publish", "a", "b", "--password", "p"),
        ("publish", "a", "b", "--file", "nowhere"),
        ("subscribe",),
        ("subscribe", "a", "--count", "0"),
        ("subscribe", "a", "--timeout", "soon"),
        ("subscribe", "a", "--session-expiry", "5"),
        ("subscribe", "a", "--mqtt", "3.1.1", "--name", "n"),
        ("subscribe", "a", "--password", "p"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(run: Run, arguments: tuple[str, ...]) -> None:
    """Exit code 2 means: the command was wrong, not the broker. A password is never an argument."""
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("subscribe", "home/#/x"), "'home/#/x' is no topic filter: # may only be the last level"),
        (("session", "subscribe", "ann", "a+/b"), "'a+/b' is no topic filter: + and # must be whole levels"),
        (("publish", "home/#", "on"), "'home/#' is not a topic name: + and # are for topic filters"),
        (("publish", "", "on"), "a topic name needs at least one character"),
    ],
)
def test_a_bad_topic_needs_no_broker_to_be_refused(run: Run, command: tuple[str, ...], sentence: str) -> None:
    """A broker that is not there would be waited for, and then be all that the user hears of."""
    done = run(*command, "--port", "1")
    assert (done.code, done.err.startswith(f"error: {sentence}")) == (2, True), done.err


def test_a_broker_that_is_not_there_is_an_honest_no(run: Run) -> None:
    """Exit code 1, and the address that was tried."""
    for arguments in (("publish", "a", "b"), ("subscribe", "a")):
        done = run(*arguments, "--port", "1", "--retry", "0")
        assert (done.code, done.out) == (1, "")
        assert done.err == "error: cannot connect to 127.0.0.1 port 1: connection refused\n"


def test_a_password_comes_from_a_file(run: Run) -> None:
    """And from nowhere else."""
    del run  # it has changed to an empty folder
    Path("word").write_text("secret\n", encoding="utf-8")
    client = Connection(host="h", port=1, user="ann", password_file=Path("word")).client("")
    assert client._connect.password == b"secret"


@pytest.mark.parametrize("command", ["publish", "subscribe"])
def test_the_help_has_an_example(run: Run, command: str) -> None:
    """The quickest way to learn a command."""
    assert f"Example: whimbrel {command} " in run(command, "--help").out


# -- output ----------------------------------------------------------------------------------------------------------


def test_text_is_printed_as_it_is_and_bytes_are_escaped() -> None:
    """A terminal must survive any body."""
    assert _line(Message(topic="a", payload="größer".encode()), as_json=False) == "a größer"
    assert _line(Message(topic="a", payload=b"\xff"), as_json=False) == "a \\xff"


def test_bytes_are_base64_in_json() -> None:
    """JSON has no bytes; the field "encoding" says that they were some."""
    found = json.loads(_line(Message(topic="a", payload=b"\xff", qos=2, retain=True), as_json=True))
    encoded = base64.b64encode(b"\xff").decode()
    assert found == {
        "topic": "a", "body": encoded, "encoding": "base64", "qos": 2, "retain": True, "properties": {},
    }  # fmt: skip


def test_properties_are_printed_by_name() -> None:
    """Those of the application; an alias says only how the message was sent."""
    properties = Properties({Property.CONTENT_TYPE: "t", Property.TOPIC_ALIAS: 1}, user=(("a", "1"), ("a", "2")))
    found = json.loads(_line(Message(topic="a", payload=b"", properties=properties), as_json=True))
    assert found["properties"] == {"content_type": "t", "user": [["a", "1"], ["a", "2"]]}


# -- what they are made of -------------------------------------------------------------------------------------------


def test_options_of_a_subscription_are_user_properties() -> None:
    """As version 5 of the broker reads them."""
    interest = Interest(topic_filter="a/#", filter_text="t > 1", ttl_s=5, max_held=7, name="n", identifier=3)
    user = (("filter", "t > 1"), ("ttl", "5"), ("max", "7"), ("name", "n"))
    assert interest.properties(5) == Properties(user=user, identifiers=(3,))
    assert interest.request(5) == SubscriptionRequest("a/#", 1)


def test_a_filter_of_the_older_version_stands_in_the_topic() -> None:
    """3.1.1 has no properties; what it has no place for at all is refused, not dropped."""
    interest = Interest(topic_filter="a/#", filter_text="t > 1")
    encoded = base64.urlsafe_b64encode(b"t > 1").decode().rstrip("=")
    assert interest.request(4) == SubscriptionRequest(f"$filter/{encoded}/a/#", 1)
    with pytest.raises(InvalidValueError, match=r"3\.1\.1"):
        Interest(topic_filter="a", ttl_s=5).properties(4)
    with pytest.raises(InvalidValueError, match=r"3\.1\.1"):
        publication("a", b"", version=4, user=[("a", "b")])


def test_what_cannot_be_subscribed_to_is_refused_at_once() -> None:
    """The broker would only say the same, later."""
    with pytest.raises(FilterError):
        Interest(topic_filter="a", filter_text="a = 1")
    with pytest.raises(InvalidValueError, match="topic filter"):
        Interest(topic_filter="a/#/b")


def test_payloads_are_bytes_text_or_json() -> None:
    """What JSON cannot say is no payload."""
    assert payload_of({"a": [1, "ö"]}) == '{"a":[1,"ö"]}'.encode()
    assert payload_of("ö") == "ö".encode()
    for bad in ({"a": float("nan")}, {"a": object()}, "\ud800"):
        with pytest.raises(InvalidValueError):
            payload_of(bad)


def test_waits_double_up_to_a_bound_and_differ() -> None:
    """The same seed gives the same waits; two clients do not come back together."""
    backoff = Backoff(first_s=1.0, most_s=10.0)
    waits = [backoff.wait_s(attempt, random.Random(7)) for attempt in (0, 1, 2, 9, 10_000)]
    factor = random.Random(7).uniform(0.5, 1.0)
    assert waits == [1 * factor, 2 * factor, 4 * factor, 10 * factor, 10 * factor]
    with pytest.raises(InvalidValueError):
        Backoff(first_s=0.0)


def test_nothing_of_the_client_needs_a_loop_to_be_made() -> None:
    """A client is often made where no loop runs yet."""
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    Connection(host="h", port=1, mqtt="3.1.1").client("")
