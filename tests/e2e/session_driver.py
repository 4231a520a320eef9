"""Random devices, sessions and publishers on a real broker, one operation after the other, and what they saw.

A run is a plan (``plan``: operations drawn from a seed) and a driver that performs it over real sockets with clients
that share no code with the broker (``raw_client``). Every so often the driver *settles*: everybody has answered, the
log is read to its end, and the judge (``session_model``) holds what each client saw against it.
Rule: an operation says all it does; one that makes no sense at its moment is skipped. So a plan can be cut anywhere and
still be performed, which is how a violation is made short (``shorten``).
Rule: all randomness is in the plan. The broker's pace is not, so a seed gives the same plan, not the same history.
"""

from __future__ import annotations

import base64
import json
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Self, TypeAlias

from single_process import SingleProcess
from tests.e2e.broker_process import BrokerProcess, Settings
from tests.e2e.raw_client import Kind, P, Packet, Properties, RawClient, packet, publish_packet
from tests.e2e.session_model import (
    End,
    Heard,
    Judge,
    Key,
    Publication,
    Told,
    View,
    body_of,
    number_of,
    private,
    subscribed_key,
)

from whimbrel.log.reader import LogReader
from whimbrel.model.subscription import Subscription

__all__ = ["DEVICES", "Operation", "Run", "perform", "plan", "shorten"]

NODE = "node-1"
DEVICES = {"d1": 5, "d2": 5, "d3": 5, "d4": 4, "d5": 4}
"""Who comes and goes, and the version each speaks (4 is 3.1.1)."""
PUBLISHERS = {"p1": 5, "p2": 4}
"""Who is always there."""
SESSIONS = ("s1", "s2", "s3")
TOPICS = ("t/a", "t/b", "t/a/x", "u/a")
TOPIC_FILTERS = ("t/a", "t/b", "t/+", "t/#", "+/a", "#", "t/a/x")
FILTERS = ("level > 4", "kind == 'red'", "level < 7 && kind != 'blue'", "begins-with(kind, 'b')")
KINDS = ("red", "blue", "green")
_WITNESS = "witness"
_SESSION_S = 3_600
_TTL_S = 604_800
_MAX = {False: 100_000, True: 1_000}
"""What a subscription gets that does not say: in a private session, and in a named one."""
_SETTINGS: Settings = {
    "log": {"view_interval_s": 0.3},
    "access": {"wrong_passwords_per_minute": 0},  # a session that does not exist counts as one
}
_SECOND_US = 1_000_000
_ANSWER = "$whimbrel/session/answer"
_REQUEST = "$whimbrel/session/"


# -- operations --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """A device connects, also if it is connected; the sessions are those of CONNECT (version 5 only)."""

    device: str
    sessions: tuple[tuple[str, str], ...] = ()
    """Names, and take or keep."""
    is_bold: bool = False
    """Whether it also names sessions that do not exist."""
    is_clean: bool = False
    is_lasting: bool = True
    receive_maximum: int = 65_535
    acknowledges: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    """A device goes, and says so or not; it may end its private session by it (version 5 only)."""

    device: str
    is_said: bool
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request: ``create``, ``delete``, ``join``, ``leave`` or ``access``."""

    device: str
    verb: str
    session: str
    receipt: str | None = None
    other: str | None = None
    """Who is made to leave, if it is not the device itself."""
    qos: int = 0
    is_bold: bool = False
    """Whether it is said although it makes no sense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """A subscription is made or modified; with SUBSCRIBE, or by request."""

    device: str
    session: str | None
    """None: its private one."""
    topic_filter: str
    name: str = ""
    filter_text: str | None = None
    ttl_s: int | None = None
    max_held: int | None = None
    qos: int = 1
    identifier: int | None = None
    is_no_local: bool = False
    is_request: bool = False
    is_bold: bool = False
    """Whether it is also said in a session that was not joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsubscribe:
    """One of a session's subscriptions is removed; which of them there are is known only then."""

    device: str
    session: str | None
    which: int
    is_request: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """A publication."""

    device: str
    topic: str
    level: int
    kind: str
    qos: int
    expiry_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Publications of several clients at once."""

    publications: tuple[Publish, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """A device that does not acknowledge by itself acknowledges some, at QoS 2 perhaps only half way."""

    device: str
    most: int
    is_half: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Time passes: whatever lapses after a second is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """The broker is stopped, or killed, with *among* on its way."""

    is_kill: bool
    among: tuple[Publish | Request | Subscribe | Acknowledge, ...] = ()
    answers: int = 0
    """How many answers are waited for before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """Everybody answers, and what they saw is judged."""


Operation: TypeAlias = (
    Connect | Disconnect | Request | Subscribe | Unsubscribe | Publish | Burst | Acknowledge | Pause | Restart | Settle
)


# -- plans -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Planner:
    """Draws operations."""

    rng: Random

    def operations(self, length: int) -> list[Operation]:
        """Return a plan; it begins with everybody and everything there."""
        drawn: list[Operation] = []
        drawn += [Request(device="p1", verb="create", session=session) for session in SESSIONS]
        drawn += [self._connect(device) for device in DEVICES]
        drawn += [self._join() for _ in range(6)]
        drawn += [self._subscribe() for _ in range(10)]
        drawn += [self._watch() for _ in range(4)]
        while len(drawn) < length:
            drawn.append(self._operation())
            if self.rng.random() < 0.4:
                drawn.append(Settle())
        return drawn

    def _operation(self) -> Operation:
        rng = self.rng
        draws: list[tuple[int, Callable[[], Operation]]] = [
            (30, self._publish),
            (15, lambda: Burst(publications=tuple(self._publish() for _ in range(rng.choice([2, 4, 8]))))),
            (10, lambda: self._connect(self._device())),
            (9, lambda: Disconnect(device=self._device(), is_said=rng.random() < 0.5, is_final=rng.random() < 0.2)),
            (12, self._subscribe),
            (7, self._unsubscribe),
            (10, self._acknowledge),
            (10, self._join),
            (4, self._leave),
            (5, self._watch),
            (2, self._create),
            (1, self._delete),
            (1, self._expel),
            (1, self._access),
            (1, self._pause_or_restart),  # which takes longer than all the rest together
        ]
        weights = [weight for weight, _ in draws]
        return rng.choices([draw for _, draw in draws], weights)[0]()

    def _device(self) -> str:
        return self.rng.choice(list(DEVICES))

    def _session(self) -> str:
        return self.rng.choice(SESSIONS)

    def _publish(self) -> Publish:
        rng = self.rng
        return Publish(
            device=rng.choice([*PUBLISHERS, *PUBLISHERS, self._device()]),
            topic=rng.choice(TOPICS),
            level=rng.randrange(10),
            kind=rng.choice(KINDS),
            qos=rng.randrange(3),
            expiry_s=rng.choice([None, None, None, None, None, 1, 60]),
        )

    def _connect(self, device: str) -> Connect:
        rng = self.rng
        sessions: tuple[tuple[str, str], ...] = ()
        if DEVICES[device] == 5 and rng.random() < 0.7:
            names = rng.sample(SESSIONS, rng.choice([1, 1, 2, 3]))
            sessions = tuple((name, self._mode()) for name in names)
        return Connect(
            device=device,
            sessions=sessions,
            is_bold=rng.random() < 0.1,
            is_clean=rng.random() < 0.3,
            is_lasting=rng.random() < 0.6,
            receive_maximum=rng.choice([1, 2, 3, 65_535]) if DEVICES[device] == 5 else 65_535,
            acknowledges=rng.random() < 0.6,
        )

    def _mode(self) -> str:
        return self.rng.choice(["take", "keep"])

    def _join(self) -> Request:
        mode = self.rng.choice([None, "take", "keep", "keep"])
        return replace(self._request("join", self._device()), receipt=mode)

    def _leave(self) -> Request:
        return self._request("leave", self._device())

    def _expel(self) -> Request:
        return replace(self._request("leave", self._client()), other=self._device())

    def _access(self) -> Request:
        return self._request("access", self._client())

    def _watch(self) -> Subscribe:
        watched = self.rng.choice(["+/changes", "+/subscriptions", "s1/+", "#"])
        return Subscribe(device=self._device(), session=None, topic_filter=f"$whimbrel/session/{watched}", qos=0)

    def _client(self) -> str:
        return self.rng.choice([self._device(), *PUBLISHERS])

    def _create(self) -> Request:
        return self._request("create", self._client())

    def _delete(self) -> Request:
        return self._request("delete", self._client())

    def _request(self, verb: str, device: str) -> Request:
        rng = self.rng
        is_bold = rng.random() < 0.1
        return Request(device=device, verb=verb, session=self._session(), qos=rng.randrange(2), is_bold=is_bold)

    def _subscribe(self) -> Subscribe:
        rng, device = self.rng, self._device()
        is_named = rng.random() < 0.7
        is_new = DEVICES[device] == 5
        is_request = is_named and (not is_new or rng.random() < 0.3)
        has_options = is_new or is_request
        return Subscribe(
            device=device,
            session=self._session() if is_named else None,
            topic_filter=rng.choice(TOPIC_FILTERS),
            name=rng.choice(["", "", "x"]) if has_options else "",
            filter_text=rng.choice([None] * 6 + list(FILTERS)),
            ttl_s=rng.choice([None, None, 60, 60, 60, 1, 1, 0]) if has_options else None,
            max_held=rng.choice([None, 50, 50, 3, 3, 1, 0]) if has_options else None,
            qos=rng.randrange(3),
            identifier=rng.choice([None, rng.randrange(1, 200)]) if is_new and not is_request else None,
            is_no_local=is_new and not is_named and rng.random() < 0.2,
            is_request=is_request,
            is_bold=rng.random() < 0.1,
        )

    def _unsubscribe(self) -> Unsubscribe:
        rng, device = self.rng, self._device()
        is_named = rng.random() < 0.7
        return Unsubscribe(
            device=device,
            session=self._session() if is_named else None,
            which=rng.randrange(100),
            is_request=is_named and (DEVICES[device] != 5 or rng.random() < 0.3),
        )

    def _acknowledge(self) -> Acknowledge:
        return Acknowledge(device=self._device(), most=self.rng.choice([1, 2, 100]), is_half=self.rng.random() < 0.3)

    def _pause_or_restart(self) -> Operation:
        return self._restart() if self.rng.random() < 0.5 else Pause()

    def _restart(self) -> Restart:
        rng = self.rng
        draws: list[Callable[[], Publish | Request | Acknowledge]] = [self._publish] * 6
        draws += [self._acknowledge, self._join, self._create]
        among = tuple(rng.choice(draws)() for _ in range(rng.choice([0, 3, 10])))
        return Restart(is_kill=rng.random() < 0.7, among=among, answers=rng.randrange(len(among) + 1))


def plan(seed: int, length: int) -> list[Operation]:
    """Return the operations of *seed*."""
    return Planner(Random(seed)).operations(length)


# -- devices -----------------------------------------------------------------------------------------------------------


class BrokenPromiseError(AssertionError):
    """The broker did what no log can explain: it closed, or did not answer."""


@dataclass(slots=True, kw_only=True)
class Pending:
    """What a client waits for an answer to."""

    key: Key | None
    must: bool | None
    """Whether the answer has to be yes; None: either."""
    what: str
    done: Callable[[], None] = lambda: None
    """What to do when it was yes."""


@dataclass(slots=True, eq=False)
class Device:
    """A client, over all its connections."""

    name: str
    version: int
    judge: Judge
    link: RawClient | None = None
    view: View | None = None
    home: str | None = None
    joined: set[str] = field(default_factory=set)
    acknowledges: bool = True
    unacknowledged: dict[int, Heard] = field(default_factory=dict)
    """What came at QoS 1 and 2 over this connection, by packet identifier."""
    releasing: dict[int, int] = field(default_factory=dict)
    """Numbers of what it sent PUBREC for and not yet PUBCOMP, by packet identifier."""
    awaited: set[int] = field(default_factory=set)
    """Packet identifiers of those whose PUBREL has not come over this connection."""
    resumed: dict[int, int] = field(default_factory=dict)
    """What it sent PUBREC for over an earlier connection, and neither PUBREL nor PUBLISH came again over this one."""
    pending: dict[tuple[str, int], Pending] = field(default_factory=dict)
    """What it waits for, by kind and number."""
    _numbers: count[int] = field(default_factory=lambda: count(1))
    _news: int = 0

    @property
    def is_connected(self) -> bool:
        """Whether it has a connection."""
        return self.link is not None

    def has_joined(self, session: str) -> None:
        """Take in that a request to join was answered."""
        assert self.view is not None
        self.joined.add(session)
        self.view.joins.append(len(self.view.heard))

    def next_number(self) -> int:
        """Return a packet identifier that is free."""
        return next(self._numbers) % 65_000 + 1

    def send(self, data: bytes) -> None:
        """Send bytes; a broker that is gone does not hear them."""
        assert self.link is not None
        try:
            self.link.send(data)
        except OSError as error:
            raise BrokenPromiseError(f"{self.name}: the broker closed the connection: {error}") from error

    def next(self, wanted: str) -> Packet:
        """Take in the next packet and return it."""
        assert self.link is not None
        try:
            found = self.link.next_packet()
        except EOFError as error:
            raise BrokenPromiseError(f"{self.name}: the broker closed, and {wanted} had not come") from error
        except TimeoutError as error:
            raise BrokenPromiseError(f"{self.name}: {wanted} did not come") from error
        self.take(found)
        return found

    def wait(self, kind: str, number: int) -> None:
        """Take in packets until what is *pending* is answered."""
        while (kind, number) in self.pending:
            self.next(f"the answer to {self.pending[kind, number].what}")

    def ping(self) -> bool:
        """Take in whatever was sent until now; tell whether anything came that moves things on."""
        self._news = 0
        self.send(packet(Kind.PINGREQ))
        while self.next("PINGRESP").kind is not Kind.PINGRESP:
            pass
        return bool(self._news)

    def come_to_rest(self) -> None:
        """Take in packets until there is nothing more to say on either side."""
        while self.ping() or self.awaited:
            while self.awaited:
                self.next(f"PUBREL of {sorted(self.awaited)}")

    def drain(self) -> None:
        """Take in what is left on a connection that its other end closes."""
        assert self.link is not None
        self.acknowledges = False
        try:
            while True:
                self.take(self.link.next_packet())
        except EOFError:
            pass
        except TimeoutError as error:
            raise BrokenPromiseError(f"{self.name}: the broker did not close the connection") from error

    def lose(self, end: str) -> None:
        """Take in that the connection is over."""
        assert self.link is not None
        assert self.view is not None
        self.link.drop()
        self.view.end, self.view.ended_at = end, _now()
        self.link = self.view = self.home = None
        self.joined.clear()
        self.unacknowledged.clear()
        self.awaited.clear()
        self.pending.clear()

    # -- what comes ----------------------------------------------------------------------------------------------------

    def take(self, found: Packet) -> None:
        """Take in a packet."""
        match found.kind:
            case Kind.PUBLISH:
                self._published(found)
            case Kind.PUBREL:
                self._news += 1
                self.awaited.discard(found.packet_id)
                self.resumed.pop(found.packet_id, None)
                if self.acknowledges or found.packet_id not in self.releasing:
                    self._complete(found.packet_id)
            case Kind.PUBACK | Kind.PUBREC:
                self._answered("publication", found.packet_id, is_yes=found.code < 0x80)
                if found.kind is Kind.PUBREC and found.code < 0x80 and self.link is not None:
                    self._try_to_answer(Kind.PUBREL, found.packet_id)
            case Kind.PUBCOMP:
                self._answered("completion", found.packet_id, is_yes=True)
            case Kind.SUBACK | Kind.UNSUBACK:
                is_yes = not found.codes or found.codes[0] < 0x80
                # That there was no such subscription is a yes without a fact.
                is_nothing = found.kind is Kind.UNSUBACK and found.codes == (0x11,)
                self._answered(found.kind.name, found.packet_id, is_yes=is_yes and not is_nothing)
            case Kind.PINGRESP:
                pass
            case Kind.DISCONNECT:
                if found.code not in {0x8B, 0x8E}:
                    raise BrokenPromiseError(f"{self.name}: DISCONNECT {found.code:#x} {found.properties}")
            case _:
                raise BrokenPromiseError(f"{self.name}: {found.kind.name} out of the blue")

    def _try_to_answer(self, kind: Kind, packet_id: int) -> None:
        """Answer, if there is still somebody: what is drained came from a broker that is gone."""
        assert self.link is not None
        with suppress(OSError):
            self.link.answer(kind, packet_id)

    def _answered(self, kind: str, number: int, *, is_yes: bool) -> None:
        pending = self.pending.pop((kind, number), None)
        if pending is None:
            if kind == "completion":
                return
            raise BrokenPromiseError(f"{self.name}: an answer to a {kind} that it did not send ({number})")
        self._news += 1
        if pending.must is not None and pending.must is not is_yes:
            raise BrokenPromiseError(f"{self.name}: {pending.what} was {'accepted' if is_yes else 'refused'}")
        if pending.key is not None:
            (self.judge.ledger.grant if is_yes else self.judge.ledger.refuse)(pending.key)
        if is_yes:
            pending.done()

    def _published(self, found: Packet) -> None:
        assert self.view is not None
        if found.topic in {_ANSWER, f"answers/{self.name}"}:
            self._request_answered(found)
            return
        if found.topic.startswith(_REQUEST):
            if found.qos or found.retain or found.dup:
                raise BrokenPromiseError(f"{self.name}: was told {found}, and not at QoS 0")
            session, _, what = found.topic.removeprefix(_REQUEST).rpartition("/")
            text = json.dumps(json.loads(found.payload), sort_keys=True)
            self.view.told.append(Told(session, what, text))
            return
        self._news += 1
        identifiers = found.every(P.SUBSCRIPTION_IDENTIFIER)
        expiry = found.every(P.MESSAGE_EXPIRY)
        heard = Heard(
            number=number_of(found.payload),
            topic=found.topic,
            qos=found.qos,
            is_dup=found.dup,
            identifiers=tuple(sorted(each for each in identifiers if isinstance(each, int))),
            expiry_s=int(expiry[0]) if expiry and isinstance(expiry[0], int) else None,
            is_retained=found.retain,
        )
        self.judge.receives(self.view, heard)
        if not found.qos:
            return
        self.releasing.pop(found.packet_id, None)  # it is begun anew
        self.resumed.pop(found.packet_id, None)
        self.unacknowledged[found.packet_id] = heard
        if len(self.unacknowledged) > self.view.receive_maximum:
            raise BrokenPromiseError(f"{self.name}: {len(self.unacknowledged)} without an answer")
        if self.acknowledges:
            self.acknowledge(found.packet_id)

    def _request_answered(self, found: Packet) -> None:
        answer = json.loads(found.payload)
        if self.version == 5 and found.every(P.CORRELATION_DATA) != [str(answer["id"]).encode()]:
            raise BrokenPromiseError(f"{self.name}: {answer} with other correlation data")
        if found.qos or found.retain or found.dup:
            raise BrokenPromiseError(f"{self.name}: {answer} is not at QoS 0")
        if not answer["ok"] and not 0x80 <= answer["code"] <= 0xFF:
            raise BrokenPromiseError(f"{self.name}: {answer} is refused without a code")
        self._answered("request", answer["id"], is_yes=answer["ok"])

    # -- what it says --------------------------------------------------------------------------------------------------

    def acknowledge(self, packet_id: int) -> None:
        """Send PUBACK or PUBREC."""
        assert self.view is not None
        heard = self.unacknowledged.pop(packet_id)
        self.view.acknowledged[heard.number] += 1
        if heard.qos == 1:
            self._try_to_answer(Kind.PUBACK, packet_id)
        else:
            self.releasing[packet_id] = heard.number
            self.awaited.add(packet_id)
            self._try_to_answer(Kind.PUBREC, packet_id)

    def _complete(self, packet_id: int) -> None:
        self.releasing.pop(packet_id, None)
        self._try_to_answer(Kind.PUBCOMP, packet_id)

    def acknowledge_some(self, most: int, *, is_half: bool) -> None:
        """Acknowledge the oldest, and finish what was begun, unless it is to be only half."""
        for packet_id in list(self.unacknowledged)[:most]:
            self.acknowledge(packet_id)
        if not is_half:
            while self.awaited:
                self.next(f"PUBREL of {sorted(self.awaited)}")
            for packet_id in list(self.releasing):
                self._complete(packet_id)

    @property
    def outstanding(self) -> int:
        """How many exchanges the broker has begun with it, and not finished."""
        is_known = [(self.name, number) in self.judge.confirmed for number in self.releasing.values()]
        return len(self.unacknowledged) + sum(is_known)


Begun: TypeAlias = tuple[Device, list[tuple[str, int]]]
"""Who said something, and what it waits for."""


def _now() -> int:
    return time.time_ns() // 1_000


# -- the driver --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of a plan."""

    violations: tuple[str, ...]
    performed: int
    """How many operations were performed until the first violation, or all."""
    facts: int
    heard: int
    restarts: int


class Driver:
    """Performs operations on a broker in *folder*."""

    def __init__(self, folder: Path) -> None:
        self.broker = BrokerProcess(folder, settings=_SETTINGS)
        self.judge = Judge(NODE, ignored=_WITNESS)
        self.devices = {name: Device(name, version, self.judge) for name, version in {**DEVICES, **PUBLISHERS}.items()}
        self.sessions: set[str] = set()
        """The named sessions that exist, as their answers say."""
        self._reader: LogReader | None = None
        self._witness: RawClient | None = None
        self._numbers, self._requests, self._fences = count(1), count(1), count()
        self._unconfirmed: list[tuple[Device, int]] = []
        """Publications of QoS 0: they have no answer, but the log has them."""
        self.restarts = 0

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        for device in self.devices.values():
            if device.link is not None:
                device.link.drop()
        if self._witness is not None:
            self._witness.drop()
        self.broker.__exit__(None, None, None)

    def _start(self) -> None:
        self.broker.start()
        self._witness = RawClient(self.broker.port)
        self._witness.connect(_WITNESS, clean=False, properties=((P.SESSION_EXPIRY, _SESSION_S),))
        if self._reader is None:
            self._reader = LogReader(self.broker.data / "log", NODE)

    def _fence(self) -> None:
        """Wait until all that the broker was told until now is applied, and on the disk."""
        assert self._witness is not None
        suback = self._witness.subscribe(("witness/nothing", next(self._fences) % 3))
        assert suback.codes[0] < 0x80, suback

    # -- operations ----------------------------------------------------------------------------------------------------

    def perform(self, operation: Operation) -> None:
        """Perform an operation and wait until it is done."""
        match operation:
            case Connect():
                self._connect(operation)
            case Disconnect():
                self._disconnect(operation)
            case Pause():
                time.sleep(1.4)  # the broker's clock is that of the machine
            case Restart():
                self._restart(operation)
            case Settle():
                self.settle()
            case Acknowledge():
                device = self.devices[operation.device]
                if device.is_connected:
                    device.acknowledge_some(operation.most, is_half=operation.is_half)
            case Burst():
                self._finish([self._begin(each) for each in operation.publications])
            case _:
                self._finish([self._begin(operation)])

    @staticmethod
    def _finish(begun: Sequence[Begun | None]) -> None:
        for each in begun:
            if each is not None:
                device, waiting = each
                for kind, number in waiting:
                    device.wait(kind, number)

    def _begin(self, operation: Publish | Request | Subscribe | Unsubscribe, *, is_alone: bool = True) -> Begun | None:
        """Say what an operation says; return who waits for what. What must be answered is known if it *is_alone*."""
        device = self.devices[operation.device]
        if not device.is_connected:
            if operation.device not in PUBLISHERS or not is_alone:
                return None
            self._connect(Connect(device=operation.device, is_lasting=operation.device == "p1"))
        match operation:
            case Publish():
                return device, self._publish(device, operation)
            case Request():
                return device, self._request(device, operation, is_alone=is_alone)
            case Subscribe():
                return device, self._subscribe(device, operation, is_alone=is_alone)
            case Unsubscribe():
                return device, self._unsubscribe(device, operation)

    def _connect(self, operation: Connect) -> None:
        device = self.devices[operation.device]
        if not operation.is_bold:
            there = tuple(each for each in operation.sessions if each[0] in self.sessions)
            operation = replace(operation, sessions=there)
        link = RawClient(self.broker.port, version=device.version)
        is_lasting = operation.is_lasting if device.version == 5 else not operation.is_clean
        view = View(
            device=device.name,
            version=device.version,
            sessions=len(operation.sessions),
            is_persistent=is_lasting,
            receive_maximum=operation.receive_maximum,
        )
        self.judge.connecting(view)
        keys: list[Key] = [("joined", name, device.name, mode) for name, mode in operation.sessions]
        for key in keys:
            self.judge.ledger.ask(key)
        welcome = link.connect(device.name, clean=operation.is_clean, properties=_connect_properties(device, operation))
        if link.waiting:
            raise BrokenPromiseError(f"{device.name}: {link.waiting} before CONNACK")
        is_allowed = all(name in self.sessions for name, _ in operation.sessions)
        if welcome.code not in {0, 0x87} or (welcome.code == 0) is not is_allowed:
            raise BrokenPromiseError(f"{device.name}: CONNACK {welcome.code:#x} to {operation}")
        if not is_allowed:
            link.drop()
            self.judge.refused(view)
            for key in keys:
                self.judge.ledger.refuse(key)
            return
        if device.is_connected:  # the newer connection wins
            device.drain()
            device.lose(End.CLOSED)
        view.is_answered, view.is_resumed = True, welcome.session_present
        for key in keys:
            self.judge.ledger.grant(key)
        if not welcome.session_present:
            device.releasing.clear()
        device.resumed = dict(device.releasing)
        device.link, device.view, device.acknowledges = link, view, operation.acknowledges
        device.joined = {name for name, _ in operation.sessions}
        device.home = operation.sessions[0][0] if operation.sessions else None

    def _disconnect(self, operation: Disconnect) -> None:
        device = self.devices[operation.device]
        if not device.is_connected:
            return
        assert device.view is not None
        if operation.is_said:
            body = b""
            if operation.is_final and device.version == 5:
                body = b"\x00\x05\x11" + (0).to_bytes(4)  # a session expiry of no time
            device.send(packet(Kind.DISCONNECT, body))
            device.drain()
        device.lose(End.CLOSED)

    def _publish(self, device: Device, operation: Publish) -> list[tuple[str, int]]:
        number = next(self._numbers)
        body = body_of(number, operation.level, operation.kind)
        publication = Publication(
            number=number, publisher=device.name, topic=operation.topic, body=body, qos=operation.qos
        )
        self.judge.publishing(publication)
        expiry_s = operation.expiry_s if device.version == 5 else None
        properties: Properties = () if expiry_s is None else ((P.MESSAGE_EXPIRY, expiry_s),)
        packet_id = device.next_number() if operation.qos else 0
        waiting: list[tuple[str, int]] = []
        if operation.qos:
            waiting.append(("publication", packet_id))
            key = ("published", number)
            device.pending[waiting[0]] = Pending(key=key, must=True, what=f"publication {number}")
        else:
            self._unconfirmed.append((device, number))
        if operation.qos == 2:
            waiting.append(("completion", packet_id))
            device.pending[waiting[1]] = Pending(key=None, must=True, what=f"PUBREL of publication {number}")
        data = publish_packet(
            operation.topic, body, qos=operation.qos, packet_id=packet_id, properties=properties, version=device.version
        )
        device.send(data)
        return waiting

    def _request(self, device: Device, operation: Request, *, is_alone: bool) -> list[tuple[str, int]]:
        session, verb = operation.session, operation.verb
        members: dict[str, object] = {"session": session}
        exists = session in self.sessions
        other = device if operation.other is None else self.devices[operation.other]
        makes_sense = session in other.joined if verb == "leave" else exists is (verb != "create")
        if is_alone and not makes_sense and not operation.is_bold:
            return []
        key: Key | None = (f"{verb}d", session)
        must: bool | None = exists
        done: Callable[[], None] = lambda: None  # noqa: E731 # one of several
        match verb:
            case "create":
                must = not exists
                done = lambda: self.sessions.add(session)  # noqa: E731
            case "delete":
                done = lambda: self._deleted(session)  # noqa: E731
            case "join":
                if operation.receipt is not None:
                    members["receipt"] = operation.receipt
                key = ("joined", session, device.name, operation.receipt or "take")
                done = lambda: device.has_joined(session)  # noqa: E731
            case "leave":
                key = ("left", session, other.name)
                must = True if session in other.joined else None if exists else False
                done = lambda: other.joined.discard(session)  # noqa: E731
                if operation.other is not None:
                    members["device"] = other.name
                    self.judge.evictions[session, other.name] = device.name
            case "access":
                key, members["open"] = ("access", session), True
                for name in DEVICES:
                    self.judge.ledger.ask(("left", session, name))
                done = lambda: self._emptied(session, device)  # noqa: E731
        pending = Pending(key=key, must=must if is_alone else None, done=done, what=f"{verb} {members}")
        return self._ask(device, verb, members, pending, qos=operation.qos)

    def _deleted(self, session: str) -> None:
        self.sessions.discard(session)
        self._emptied(session, None)

    def _emptied(self, session: str, besides: Device | None) -> None:
        for device in self.devices.values():
            if device is not besides:
                device.joined.discard(session)

    def _ask(
        self,
        device: Device,
        verb: str,
        members: dict[str, object],
        pending: Pending,
        *,
        qos: int = 0,
    ) -> list[tuple[str, int]]:
        """Send a request."""
        number = next(self._requests)
        waiting = [("request", number)]
        device.pending[waiting[0]] = pending
        if pending.key is not None:
            self.judge.ledger.ask(pending.key)
        properties: Properties = ()
        if device.version == 5:
            properties = ((P.RESPONSE_TOPIC, f"answers/{device.name}"), (P.CORRELATION_DATA, str(number).encode()))
        packet_id = 0
        if qos:
            packet_id = device.next_number()
            waiting.append(("publication", packet_id))
            # In version 5 the code says what the answer says, in 3.1.1 it is always yes.
            said = pending.must if device.version == 5 else True
            device.pending[waiting[1]] = Pending(key=None, must=said, what=pending.what)
        body = json.dumps({"id": number, **members}).encode()
        topic = _REQUEST + verb
        device.send(
            publish_packet(topic, body, qos=qos, packet_id=packet_id, properties=properties, version=device.version)
        )
        return waiting

    def _subscribe(self, device: Device, operation: Subscribe, *, is_alone: bool) -> list[tuple[str, int]]:
        session = operation.session
        is_joined = session is None or session in device.joined
        if not is_joined and not operation.is_bold:
            return []
        if operation.topic_filter.startswith(_REQUEST):
            self._fence()  # the broker tells of what is on its way to the disk, if the subscription is there by then
        must: bool | None = is_joined
        if session is not None and operation.is_request and not is_joined:
            must = None if session in self.sessions else False
        topic_filter, name = operation.topic_filter, operation.name
        is_in_topic = operation.filter_text is not None and device.version != 5 and not operation.is_request
        if is_in_topic:
            assert operation.filter_text is not None
            encoded = base64.urlsafe_b64encode(operation.filter_text.encode()).decode().rstrip("=")
            name, topic_filter = f"$filter/{encoded}", f"$filter/{encoded}/{operation.topic_filter}"
        is_named = session is not None
        subscription = Subscription(
            session=private(device.name) if session is None else session,
            subject_filter=operation.topic_filter,
            name=name,
            filter_text=operation.filter_text,
            ttl_us=(_TTL_S if operation.ttl_s is None else operation.ttl_s) * _SECOND_US,
            max_held=_MAX[is_named] if operation.max_held is None else operation.max_held,
            qos=min(operation.qos, 1) if is_named else operation.qos,
            no_local=operation.is_no_local,
            identifier=operation.identifier,
        )
        key = subscribed_key(subscription)
        options = {"name": operation.name, "filter": operation.filter_text, "ttl": operation.ttl_s}
        options |= {"max": operation.max_held}
        said = {each: value for each, value in options.items() if value not in {None, ""}}
        if operation.is_request:
            members: dict[str, object] = {"session": session, "topic": topic_filter, "qos": operation.qos, **said}
            pending = Pending(key=key, must=must if is_alone else None, what=f"subscribe {members}")
            return self._ask(device, "subscribe", members, pending)
        properties: Properties = ()
        if device.version == 5:
            properties = tuple((P.USER, (each, str(value))) for each, value in said.items())
            properties += self._chosen(device, session)
            if is_named:
                properties += ((P.USER, ("modify", "yes")),)  # what a device of the model says, it means
            if operation.identifier is not None:
                properties += ((P.SUBSCRIPTION_IDENTIFIER, operation.identifier),)
        elif session is not None:
            return []
        self.judge.ledger.ask(key)
        packet_id = device.next_number()
        device.pending["SUBACK", packet_id] = Pending(
            key=key, must=must if is_alone else None, what=f"SUBSCRIBE {operation}"
        )
        options_byte = operation.qos | operation.is_no_local << 2
        device.send(_subscribe_packet(packet_id, topic_filter, options_byte, properties, device.version))
        return [("SUBACK", packet_id)]

    @staticmethod
    def _chosen(device: Device, session: str | None) -> Properties:
        """Return how a packet says which session it is for; not at all, where it is the one it would be anyway."""
        if device.home == session:
            return ()
        return ((P.USER, ("session", session or "")),)

    def _unsubscribe(self, device: Device, operation: Unsubscribe) -> list[tuple[str, int]]:
        """Remove what the judge knows to be there."""
        self._fence()
        self._read()
        session = private(device.name) if operation.session is None else operation.session
        known = sorted(identity for s, identity in self.judge.hold.subscriptions if s == session)
        topic_filter, name = known[operation.which % len(known)] if known else ("t/nothing", "")
        assert topic_filter is not None
        is_joined = operation.session is None or session in device.joined
        key: Key | None = ("removed", session, topic_filter, name) if known else None
        if operation.is_request:
            must = True if is_joined and known else None if session in self.sessions else False
            members: dict[str, object] = {"session": session, "topic": topic_filter}
            members |= {"name": name} if name else {}
            if not known:
                return []
            pending = Pending(key=key, must=must, what=f"unsubscribe {members}")
            return self._ask(device, "unsubscribe", members, pending)
        properties: Properties = ()
        if device.version == 5:
            properties = self._chosen(device, operation.session)
            if name:
                properties += ((P.USER, ("name", name)),)
        elif operation.session is not None:
            return []
        elif name:
            topic_filter = f"{name}/{topic_filter}"
        if key is not None:
            self.judge.ledger.ask(key)
        packet_id = device.next_number()
        must = bool(known) if is_joined else False
        if device.version != 5:
            must = True if known else None  # in 3.1.1 UNSUBACK says nothing
        device.pending["UNSUBACK", packet_id] = Pending(key=key, must=must, what=f"UNSUBSCRIBE {key}")
        device.send(_unsubscribe_packet(packet_id, topic_filter, properties, device.version))
        return [("UNSUBACK", packet_id)]

    # -- restarts ------------------------------------------------------------------------------------------------------

    def _restart(self, operation: Restart) -> None:
        """Stop or kill the broker with some operations on their way, and start it again."""
        self.restarts += 1
        waiting: list[tuple[Device, tuple[str, int]]] = []
        for each in operation.among:
            if isinstance(each, Acknowledge):
                device = self.devices[each.device]
                if device.is_connected:
                    device.acknowledge_some(each.most, is_half=True)
                continue
            begun = self._begin(each, is_alone=False)
            if begun is not None:
                waiting += [(begun[0], wanted) for wanted in begun[1]]
        for device, wanted in waiting[: operation.answers]:
            device.wait(*wanted)
        if operation.is_kill:
            self.broker.kill()
        elif (status := self.broker.stop()) != 0:
            raise BrokenPromiseError(f"the broker stopped with {status}")
        for device in self.devices.values():
            if device.is_connected:
                device.drain()
                device.lose(End.KILLED if operation.is_kill else End.CLOSED)
        if self._witness is not None:
            self._witness.drop()
        self._start()
        self._judge(_now(), is_killed=operation.is_kill, is_stopped=True)

    # -- judging -------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let everybody answer, and judge what they saw."""
        now = _now()
        connected = [device for device in self.devices.values() if device.is_connected]
        for device in connected:
            device.ping()
        self._fence()
        for device in connected:
            device.come_to_rest()
        for device, number in self._unconfirmed:
            if device.is_connected:
                self.judge.ledger.grant(("published", number))
        self._judge(now, is_killed=False)
        for device in connected:
            self._judge_releases(device)

    def _read(self) -> None:
        assert self._reader is not None
        for fact in self._reader.facts():
            self.judge.take(fact)

    def _judge(self, now: int, *, is_killed: bool, is_stopped: bool = False) -> None:
        self._fence()
        self._read()
        judge, ledger = self.judge, self.judge.ledger
        missing = ledger.missing()
        if is_killed:
            missing = [key for key in missing if self._is_durable(key)]
        judge.violations += [f"the log: {key} was answered with yes, and is not there" for key in missing]
        judge.violations += [f"the log: nobody asked for {key}" for key in ledger.unasked()]
        if not any(device.pending for device in self.devices.values()):
            ledger.close()
        self._unconfirmed.clear()
        outstanding = {name: device.outstanding for name, device in self.devices.items() if device.is_connected}
        judge.compare(now=now, outstanding=outstanding)
        if is_stopped:
            self.sessions = set(judge.sessions)
        elif self.sessions != judge.sessions:
            judge.violations.append(f"the log: {judge.sessions} exist, and {self.sessions} were created")
        if judge.violations:
            raise BrokenPromiseError("; ".join(judge.violations))

    def _is_durable(self, key: Key) -> bool:
        """Tell whether what was granted must have survived a kill."""
        if key[0] == "published":
            assert isinstance(key[1], int)
            return self.judge.is_owed(key[1])
        if key[0] in {"subscribed", "removed"}:
            session = str(key[1])
            return not session.startswith("$mqtt/") or session.removeprefix("$mqtt/") in self.judge.persistent
        return True

    def _judge_releases(self, device: Device) -> None:
        """Ask whether what is written down as received was released, also over the next connection."""
        unreleased = [number for number in device.resumed.values() if (device.name, number) in self.judge.confirmed]
        if unreleased:
            raise BrokenPromiseError(f"{device.name}: {unreleased} of QoS 2 were never released")

    def finish(self) -> None:
        """Let everybody come back, acknowledge and go; then ask the pipeline what it makes of the log."""
        for name, version in DEVICES.items():
            device = self.devices[name]
            device.acknowledges = True
            if device.is_connected:
                device.acknowledge_some(1 << 30, is_half=False)
            else:
                self._connect(Connect(device=name, is_clean=False, is_lasting=version == 5))
        self.settle()
        for name in DEVICES:
            self._disconnect(Disconnect(device=name, is_said=True))
        self.settle()
        status = self.broker.stop()
        self._read()
        judge = self.judge
        if status != 0:
            judge.violations.append(f"the broker stopped with {status}")
        if "Traceback" in (told := "".join(self.broker.lines)):
            judge.violations.append(told[-3_000:])
        made = SingleProcess(assume_receipts=False).run(judge.facts).deliveries
        found = {(d.session, d.device, d.seq, d.subscriptions, d.outcome, d.decided_at, d.lapses_at) for d in made}
        wanted = judge.settled()
        judge.violations += [f"the pipeline: has {each}" for each in sorted(found - wanted, key=str)]
        judge.violations += [f"the pipeline: lacks {each}" for each in sorted(wanted - found, key=str)]


def _connect_properties(device: Device, operation: Connect) -> Properties:
    if device.version != 5:
        return ()
    properties: Properties = ((P.USER, ("whimbrel", "1")),)
    if operation.is_lasting:
        properties += ((P.SESSION_EXPIRY, _SESSION_S),)
    if operation.receive_maximum < 65_535:
        properties += ((P.RECEIVE_MAXIMUM, operation.receive_maximum),)
    properties += tuple((P.USER, ("session", name)) for name, _ in operation.sessions)
    modes = [mode for _, mode in operation.sessions]
    if len(modes) > 1 and len(set(modes)) == 1:
        modes = modes[:1]  # one alone is for all
    if modes != ["take"]:  # the default
        properties += tuple((P.USER, ("receipt", mode)) for mode in modes)
    return properties


def _text(value: str) -> bytes:
    data = value.encode()
    return len(data).to_bytes(2) + data


def _head(packet_id: int, properties: Properties, version: int) -> bytes:
    return packet_id.to_bytes(2) + (_encoded(properties) if version == 5 else b"")


def _encoded(properties: Properties) -> bytes:
    """Return the properties of SUBSCRIBE and UNSUBSCRIBE: user properties, and an identifier."""
    data = b""
    for name, value in properties:
        if isinstance(value, tuple):
            data += bytes([name]) + _text(value[0]) + _text(value[1])
        else:
            assert isinstance(value, int)
            data += bytes([name]) + _variable(value)
    return _variable(len(data)) + data


def _variable(number: int) -> bytes:
    low, high = number % 128, number // 128
    assert high < 128
    return bytes([low | 128, high]) if high else bytes([low])


def _subscribe_packet(packet_id: int, topic_filter: str, options: int, properties: Properties, version: int) -> bytes:
    body = _head(packet_id, properties, version) + _text(topic_filter) + bytes([options])
    return packet(Kind.SUBSCRIBE, body, 2)


def _unsubscribe_packet(packet_id: int, topic_filter: str, properties: Properties, version: int) -> bytes:
    return packet(Kind.UNSUBSCRIBE, _head(packet_id, properties, version) + _text(topic_filter), 2)


# -- runs --------------------------------------------------------------------------------------------------------------


def perform(operations: Sequence[Operation], *, folder: Path | None = None) -> Run:
    """Perform a plan on a broker of its own and judge it."""
    with tempfile.TemporaryDirectory() as made:
        driver = Driver(folder or Path(made))
        performed = 0
        try:
            with driver:
                for operation in operations:
                    performed += 1
                    driver.perform(operation)
                driver.finish()
        except AssertionError as error:
            told = [str(error)] if isinstance(error, BrokenPromiseError) else [f"{type(error).__name__}: {error}"]
            violations = driver.judge.violations or told
        else:
            violations = driver.judge.violations
        heard = len(driver.judge.heard)
        return Run(
            violations=tuple(violations),
            performed=performed,
            facts=len(driver.judge.facts),
            heard=heard,
            restarts=driver.restarts,
        )


def _promise(run: Run) -> str:
    """Return what sort of violation was found first: its words, without names and numbers."""
    first = run.violations[0] if run.violations else ""
    return " ".join(re.findall(r"\b[a-zA-Z]{3,}\b", first.partition(":")[2])[:6])


def shorten(operations: Sequence[Operation], *, most_runs: int = 60) -> tuple[list[Operation], Run]:
    """Return fewer operations that break the same promise: pieces are left out as long as it is broken."""
    run = perform(operations)
    broken = _promise(run)
    kept = list(operations[: run.performed])
    size, runs = max(1, len(kept) // 2), 1
    while runs < most_runs:
        at = 0
        was_cut = False
        while at < len(kept) and runs < most_runs:
            fewer = kept[:at] + kept[at + size :]
            again = perform(fewer)
            runs += 1
            if again.violations and _promise(again) == broken:
                kept, run, was_cut = fewer[: again.performed], again, True
            else:
                at += size
        if size == 1 and not was_cut:
            break
        size = max(1, size // 2)
    return kept, run
