"""No password and no private key is found anywhere but where it was given: not on the disk, not in what is said.

A broker lives through everything that has to do with secrets, at its most talkative. Then all that it wrote and said is
searched for every secret, in plain and as it would look in hexadecimal or base64.
Rule: the search must be able to fail. What is no secret (the body of a publication, the name of a user) is looked for
in the same places in the same way, and has to be found there.
"""

from __future__ import annotations

import base64
import hashlib
import json
import queue
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any, Self

import paho.mqtt.client as paho
import pyarrow.parquet as pq
import pytest
from paho.mqtt.client import MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from tests.e2e.broker_process import BrokerProcess, Settings

from whimbrel.broker.access.users import Users

TIMEOUT_S = 60.0
SESSIONS, ANSWERS = "$whimbrel/session/", "$whimbrel/session/answer"
KINDS = (
    "user password", "wrong user password", "one: owner", "two: user", "two: admin", "three: user", "three: admin",
    "three: owner", "newer password", "wrong session password", "wrong password in a request", "refused password",
    "key of CONNECT", "key of PUBLISH", "key of SUBSCRIBE", "key of a request", "key of keys", "key of a will",
    "key that is none", "key on the wrong side", "key of an unknown scheme", "key in SUBSCRIBE that is none",
    "key in CONNECT that is none", "key in a request that is none",
)  # fmt: skip
SECRETS: Mapping[str, str] = {kind: f"Zq{hashlib.sha256(kind.encode()).hexdigest()[:18]}xV" for kind in KINDS}
"""Words that nothing else has; what a hash of them is, is no secret."""
CONTROL, USER_NAME = "Kontrolle4711wird0815gefunden", "ann-whose-name-is-known"
_ENCLOSED = ("", "a", "ab")
"""What stands before a secret decides how base64 spells it."""


# -- searching ---------------------------------------------------------------------------------------------------------


def _forms(secret: str) -> Iterator[bytes]:
    """Yield how a secret may be spelt; base64 without the characters that its neighbours share in."""
    plain = secret.encode()
    yield plain
    yield plain[::-1]
    yield secret.encode("utf-16-le")
    yield plain.hex().encode()
    yield plain.hex().upper().encode()
    for before in _ENCLOSED:
        encoded = base64.b64encode(before.encode() + plain)
        inner = encoded[(len(before) * 8 + 5) // 6 : (len(before) + len(plain)) * 8 // 6]
        yield inner
        yield inner.replace(b"+", b"-").replace(b"/", b"_")


def _found(secrets: Mapping[str, str], places: Mapping[str, bytes]) -> list[tuple[str, str]]:
    """Return which secrets stand where."""
    forms = {kind: set(_forms(secret)) for kind, secret in secrets.items()}
    return [
        (kind, place)
        for place, data in places.items()
        for kind, spelt in forms.items()
        if any(form in data for form in spelt)
    ]


@pytest.mark.parametrize("before", ["", "a", "ab", "abc"])
def test_the_search_finds_a_secret_however_it_is_spelt(before: str) -> None:
    """In the middle of something else, too."""
    text = f"{before}{CONTROL}nach".encode()
    spelt = {
        "plain": text,
        "hex": text.hex().encode(),
        "upper": text.hex().upper().encode(),
        "base64": base64.b64encode(text),
        "urlsafe": base64.urlsafe_b64encode(text),
        "utf-16": text.decode().encode("utf-16-le"),
        "nothing": b"nothing",
    }
    assert [place for _, place in _found({"control": CONTROL}, spelt)] == [each for each in spelt if each != "nothing"]


# -- a client that remembers -------------------------------------------------------------------------------------------


class Listener:
    """A client that remembers all it was told, properties included."""

    def __init__(
        self,
        broker: BrokerProcess,
        name: str,
        *,
        user: Sequence[tuple[str, str]] = (),
        username: str | None = None,
        password: str | None = None,
        will: tuple[str, str] | None = None,
    ) -> None:
        self.heard: list[str] = []
        self.code = -1
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._connected, self._done = Event(), Event()
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion.MQTTv5, reconnect_on_failure=False
        )
        self._client.on_connect = self._on_connect
        self._client.on_message = self._on_message
        self._client.on_subscribe = self._on_done
        self._client.on_publish = self._on_done
        self._client.on_disconnect = lambda *told: self.heard.append(str(told[2:]))
        if username is not None:
            self._client.username_pw_set(username, password)
        if will is not None:
            properties = _properties(PacketTypes.WILLMESSAGE, [("key", will[1])])
            self._client.will_set(will[0], f"will {CONTROL}", 1, properties=properties)
        self._client.connect(
            "127.0.0.1", broker.port, properties=_properties(PacketTypes.CONNECT, [("whimbrel", "1"), *user])
        )
        self._client.loop_start()
        assert self._connected.wait(TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        self._client._reset_sockets()  # paho leaves that to the garbage collector, which warns of open sockets

    def _on_connect(self, _client: object, _data: object, _flags: object, code: ReasonCode, more: object) -> None:
        self.code = code.value
        self.heard.append(f"{code} {more}")
        self._connected.set()

    def _on_message(self, _client: object, _data: object, message: MQTTMessage) -> None:
        text = message.payload.decode(errors="replace")
        self.heard.append(f"{message.topic} {text} {message.properties}")
        if message.topic == ANSWERS:
            self._answers.put(json.loads(text))

    def _on_done(self, *told: object) -> None:
        self.heard.append(str([str(each) for each in told[2:]]))
        self._done.set()

    def subscribe(self, topic: str, *user: tuple[str, str]) -> None:
        """Subscribe, granted or not."""
        self._done.clear()
        self._client.subscribe(topic, 1, properties=_properties(PacketTypes.SUBSCRIBE, user))
        assert self._done.wait(TIMEOUT_S)

    def publish(self, topic: str, payload: str, *user: tuple[str, str], retain: bool = False) -> None:
        """Publish with QoS 1, accepted or not."""
        self._done.clear()
        self._client.publish(topic, payload, 1, retain, _properties(PacketTypes.PUBLISH, user))
        assert self._done.wait(TIMEOUT_S)

    def ask(self, verb: str, **members: Any) -> bool:
        """Make a request; tell whether the answer is yes."""
        properties = _properties(PacketTypes.PUBLISH)
        properties.ResponseTopic = ANSWERS
        self._client.publish(SESSIONS + verb, json.dumps(members), 1, properties=properties)
        return bool(self._answers.get(timeout=TIMEOUT_S)["ok"])

    def drop(self) -> None:
        """Go without a word."""
        connection = self._client.socket()
        assert connection is not None
        connection.close()


def _properties(kind: int, user: Sequence[tuple[str, str]] = ()) -> Properties:
    properties = Properties(kind)  # type: ignore[no-untyped-call]  # paho has no type for it
    if user:
        properties.UserProperty = list(user)
    return properties


def _public(scheme: str, kind: str) -> str:
    return f"{scheme}:{hashlib.sha256(SECRETS[kind].encode()).hexdigest()}"


def _private(scheme: str, kind: str) -> str:
    return f"{scheme}:private:{SECRETS[kind]}"


# -- what happens ------------------------------------------------------------------------------------------------------


def _users_come(broker: BrokerProcess) -> list[str]:
    heard: list[str] = []
    for password, code in (("user password", 0), ("wrong user password", 0x86)):
        with Listener(broker, "user", username=USER_NAME, password=SECRETS[password]) as user:
            assert user.code == code
            heard += user.heard
    return heard


def _sessions_are_made(broker: BrokerProcess) -> list[str]:
    """Passwords of all levels: given, used, mistaken, changed."""
    levels = {
        "one": {"owner": "one: owner"},
        "two": {"user": "two: user", "admin": "two: admin"},
        "three": {"user": "three: user", "admin": "three: admin", "owner": "three: owner"},
    }
    heard: list[str] = []
    with Listener(broker, "maker", username=USER_NAME, password=SECRETS["user password"]) as maker:
        for session, words in levels.items():
            assert maker.ask(
                "create", session=session, passwords={level: SECRETS[word] for level, word in words.items()}
            )
            for word in words.values():
                assert maker.ask("join", session=session, password=SECRETS[word])
                assert maker.ask("leave", session=session)
        assert not maker.ask("create", session="four", passwords={"user": SECRETS["refused password"]})
        assert not maker.ask("create", session="four", passwords={"king": SECRETS["refused password"]})
        assert not maker.ask("join", session="one", password=SECRETS["wrong password in a request"])
        assert not maker.ask("join", session="none", password=SECRETS["wrong password in a request"])
        newer = {"owner": SECRETS["newer password"]}
        assert maker.ask("access", session="one", password=SECRETS["one: owner"], passwords=newer)
        assert maker.ask("create", session="mine", list={"owner": USER_NAME})
        heard += maker.heard
    for session, word, code in (("two", "two: admin", 0), ("two", "wrong session password", 0x87)):
        with Listener(broker, "joiner", user=[("session", session), ("password", SECRETS[word])]) as joiner:
            assert joiner.code == code
            if not code:
                joiner.subscribe("held/#")
            heard += joiner.heard
    return heard


def _keys_are_used(broker: BrokerProcess, watcher: Listener) -> list[str]:
    """On connections, publications, subscriptions, wills and in requests; some of them wrong."""
    heard: list[str] = []
    with (
        Listener(broker, "sender", user=[("key", _private("producer", "key of CONNECT"))]) as sender,
        Listener(broker, "reader", user=[("key", _public("producer", "key of CONNECT"))]) as reader,
        Listener(broker, "bad", user=[("key", SECRETS["key in CONNECT that is none"])]) as bad,
    ):
        assert bad.code
        reader.subscribe("locked/#", ("key", _private("consumer", "key of SUBSCRIBE")))
        reader.subscribe("bad", ("key", SECRETS["key in SUBSCRIBE that is none"]))
        reader.subscribe("bad", ("key", _private("producer", "key on the wrong side")))
        sender.publish("locked/1", CONTROL, ("key", _private("dual_producer", "key of PUBLISH")), ("other", CONTROL))
        sender.publish("locked/2", CONTROL, ("key", _public("consumer", "key of SUBSCRIBE")), retain=True)
        sender.publish("held/1", CONTROL, ("insecure", "yes"))
        sender.publish("bad", CONTROL, ("key", f"producer:{SECRETS['key that is none']}"))
        sender.publish("bad", CONTROL, ("key", _private("consumer", "key on the wrong side")))
        sender.publish("bad", CONTROL, ("key", _private("unknown", "key of an unknown scheme")))
        assert sender.ask("keys", add=[_private("consumer", "key of keys")])
        assert not sender.ask("keys", add=[SECRETS["key in a request that is none"]])
        word = SECRETS["two: admin"]
        key = _private("consumer", "key of a request")
        assert sender.ask("subscribe", session="two", topic="held/keys", keys=[key], password=word)
        assert not sender.ask("subscribe", session="two", topic="a", keys=[SECRETS["key in a request that is none"]])
        assert sender.ask("show", session="two", password=SECRETS["two: user"])
        will = ("will/1", _private("producer", "key of a will"))
        with Listener(broker, "mortal", will=will) as mortal:
            mortal.drop()
        assert watcher.ask("list")
        for each in (sender, reader, bad):
            heard += each.heard
        assert any(CONTROL in each for each in reader.heard)
    return heard


def _metrics(broker: BrokerProcess) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.ports['http']}/metrics", timeout=TIMEOUT_S) as page:
        return bytes(page.read())


def _whimbrel(*arguments: str) -> bytes:
    return subprocess.run([sys.executable, "-m", "whimbrel", *arguments], check=True, capture_output=True).stdout


def _files(folder: Path) -> dict[str, bytes]:
    """Return every file as it is."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _unpacked(folder: Path) -> dict[str, bytes]:
    """Return what is in the files whose bytes are packed: exported parts, and the rows of the view."""
    found: dict[str, bytes] = {}
    for path in folder.rglob("*.parquet"):
        found[f"rows of {path.name} in {path.parts[-4]}"] = repr(pq.ParquetFile(path).read().to_pylist()).encode()
    for path in folder.rglob("*.sqlite"):
        view = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        rows = view.execute("SELECT kind, key, value FROM rows").fetchall()
        view.close()
        found["rows of the view"] = b"\n".join(b"%s %s %s" % (kind.encode(), key, value) for kind, key, value in rows)
    return found


def test_no_secret_is_found_in_what_a_broker_writes_or_says(tmp_path: Path) -> None:
    """Passwords and private keys are hashed at the edge, and go no further."""
    users = tmp_path / "users"
    Users.read(users, missing_ok=True).add(USER_NAME, SECRETS["user password"])
    settings: Settings = {
        "access": {"users": str(users), "anonymous": True, "wrong_passwords_per_minute": 0},
        "log": {"view_interval_s": 0.1},
        "observe": {"log_level": "debug", "sys_interval_s": 0.1},
    }
    folder, places = tmp_path / "broker", dict[str, bytes]()
    heard: list[str] = []
    broker = BrokerProcess(folder, "--http-port", "0", settings=settings)
    for run in ("first", "second"):
        with broker, Listener(broker, "watcher") as watcher:
            for topic in ("#", "$SYS/#", "$whimbrel/#", f"{SESSIONS}+/changes"):
                watcher.subscribe(topic)
            if run == "first":
                heard += _sessions_are_made(broker)
            heard += _users_come(broker)
            heard += _keys_are_used(broker, watcher)
            places[f"metrics of the {run} run"] = _metrics(broker)
            places.update({f"{run}: {name}": data for name, data in _files(tmp_path).items()})
            heard += watcher.heard
            if run == "first":
                broker.kill()  # it leaves behind what it had no time to tidy up
        assert any("$SYS/" in each for each in watcher.heard)
        places |= _files(tmp_path)
    log = str(folder / "data" / "log")
    places["log show"] = _whimbrel("log", "show", log, "--json")
    places["log export"] = _whimbrel("log", "export", log, "--all")
    places |= {f"exported: {name}": data for name, data in _files(tmp_path).items()} | _unpacked(tmp_path)
    places["what was heard"] = "\n".join(heard).encode()
    places["output"] = "".join(broker.lines).encode()
    assert _found(SECRETS, places) == []
    _is_a_search_worth_its_name(places)


def _is_a_search_worth_its_name(places: Mapping[str, bytes]) -> None:
    """Show that what is no secret is found wherever a secret could have been."""
    where = {place for _, place in _found({"control": CONTROL}, places)}
    assert {"log show", "what was heard", "rows of the view"} <= where
    assert any(place.startswith("rows of part-") for place in where)
    assert all(any(place.endswith(kind) for place in where) for kind in (".seg", ".sqlite", ".parquet"))
    named = {place for _, place in _found({"name": USER_NAME}, places)}
    assert {"users", "log show", "output"} <= named
    assert "output" not in where, "a body is in the log of the process"
    said = (b"listening", b"connection refused", b"publication refused", b"subscription refused", b"request refused")
    assert all(each in places["output"] for each in said)
    assert b"whimbrel_named_sessions 4" in places["metrics of the first run"]
