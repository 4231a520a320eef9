"""Two users of one broker: nobody ever receives what their rights refuse, and nobody else's copy is settled by it.

Whatever users, rights, sessions, shares, retained messages, wills, takeovers, restarts and changes of rights there are.
``Judge`` is a second reading of what each client may and must receive; it asks the broker only who was let in, which
subscriptions were granted and which publications accepted, and the first and the last of these it judges too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from broker_rig import ANSWERS, NODE, Peer, Rig, publishing, subscribing
from hypothesis import given
from hypothesis import strategies as st
from naive_rights import NaiveRights, admits

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.client_ids import ClientRule
from whimbrel.broker.access.topic_rights import Action, Rule
from whimbrel.broker.settings.config import AccessSettings, Config
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.hold.private import is_shared
from whimbrel.hold.rows import Key
from whimbrel.log.reader import read
from whimbrel.model.facts import Outcome, Receipt
from whimbrel.model.notification import Notification
from whimbrel.mqtt.packets import V5, V311, Connack, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, Will

CONFIG = replace(Config(), access=AccessSettings(users="users", anonymous=True))
USERS = ("ann", "bob", None)
CLIENTS = ("pda", "tab", "box")
TOPICS = ("a", "a/b", "b", "home/ann", "home/bob", "home/pda")
FILTERS = ("#", "+", "a/#", "a", "+/b", "home/+", "home/ann", "home/#", "b", "$SYS/#")
WARD, SHARE, SOURCE = "ward", "$share/g/", "source"

# What is asked of sessions, and by operators, is not what is judged here.
REQUESTS = Rule(
    topics=("$whimbrel/#",), actions=frozenset({Action.PUBLISH, Action.SUBSCRIBE}), is_allowing=True
)  # fmt: skip
OPERATING = Rule(
    topics=("$whimbrel/#", "#"), actions=frozenset({Action.OPERATE, Action.PUBLISH}), is_allowing=True, user="op"
)

patterns = st.sampled_from([*FILTERS, "home/{user}", "home/{client}", "home/{user}/#"])
rules = st.builds(
    Rule,
    topics=st.lists(patterns, min_size=1, max_size=2).map(tuple),
    actions=st.sets(st.sampled_from([Action.PUBLISH, Action.SUBSCRIBE]), min_size=1).map(frozenset),
    is_allowing=st.booleans(),
    user=st.sampled_from([None, "*", "", "ann", "bob"]),
    client=st.sampled_from([None, None, None, "*", "pda"]),
)
client_rules = st.builds(
    ClientRule,
    ids=st.sampled_from([("pda", "maker"), ("{user}*", "*b*"), ("*",), ("b*", "ta*", "maker")]),
    user=st.sampled_from([None, "", "ann", "bob"]),
)
rights = st.builds(
    lambda rules, client_ids, *, is_open: NaiveRights(
        (REQUESTS, OPERATING, *rules), is_open, [*client_ids, ClientRule(ids=("*",), user="op")] if client_ids else []
    ),
    st.lists(rules, max_size=5),
    st.sampled_from(range(8)).flatmap(lambda n: st.just([]) if n else st.lists(client_rules, min_size=1, max_size=2)),
    is_open=st.sampled_from([True, True, False]),
)


@dataclass
class Session:
    """A private session, as the judge knows it."""

    owner: str | None
    expiry_s: int
    version: int
    is_released: bool = False
    wanted: dict[str, int] = field(default_factory=dict)
    """Topic filters, and the QoS that was granted."""
    owed: dict[bytes, str] = field(default_factory=dict)
    """Payloads that must still come, and their topics."""


@dataclass
class Here:
    """A client that is connected."""

    peer: Peer
    user: str | None
    is_lazy: bool = False
    """It acknowledges nothing."""
    came: list[Publish] = field(default_factory=list)
    """What it was sent in this step."""


class Judge:
    """A broker, its clients, and what they may and must receive."""

    def __init__(self, folder: Path, given: NaiveRights) -> None:
        self.folder, self.rights = folder, given
        self.rig = self._rig(None)
        self.here: dict[str, Here] = {}
        self.sessions: dict[str, Session] = {}
        self.retained: dict[str, bytes] = {}
        self.ward: dict[str, int] = {}
        """What the named session subscribes to."""
        self.in_ward: set[str] = set()
        self.ward_owed: dict[bytes, str] = {}
        self.shared: dict[bytes, tuple[str, set[str]]] = {}
        """What is owed to one session of each share: by payload, the topic and the clients that serve it."""
        self.received: set[tuple[str, bytes]] = set()
        self.view: dict[Key, bytes] = {}
        self.count = self.delivered = 0

    def _rig(self, state: BrokerState | None) -> Rig:
        authorizer = Authorizer(self.rights.real())
        return Rig(self.folder, CONFIG, authorizer=authorizer, verify=lambda _user, _password: True, state=state)

    def _may(self, action: Action, client_id: str, topic: str) -> bool:
        return self.rights.allow(action, self.here[client_id].user, client_id, topic)

    # -- what is sent ------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let everybody read and answer until nothing moves, and judge what came."""
        is_moving = True
        while is_moving:
            self.rig.settle()
            is_moving = False
            for client_id, here in list(self.here.items()):
                packets = here.peer.take()
                is_moving = is_moving or bool(packets)
                for packet in packets:
                    self._read(client_id, here, packet)
                if here.peer.is_closed and self.here.get(client_id) is here:
                    self._gone(client_id)

    def _read(self, client_id: str, here: Here, packet: object) -> None:
        if isinstance(packet, Pubrel):
            here.peer.send(Pubcomp(packet.packet_id))
        if not isinstance(packet, Publish) or packet.topic == ANSWERS:
            return
        assert self.rights.allow(Action.SUBSCRIBE, here.user, client_id, packet.topic), (client_id, here.user, packet)
        self.delivered += 1
        self.received.add((client_id, packet.payload))
        here.came.append(packet)
        self.sessions[client_id].owed.pop(packet.payload, None)
        self.shared.pop(packet.payload, None)
        if client_id in self.in_ward:
            self.ward_owed.pop(packet.payload, None)
        if packet.qos and not here.is_lazy:
            here.peer.send(Puback(packet.packet_id) if packet.qos == 1 else Pubrec(packet.packet_id))

    def forgive(self) -> None:
        """Let what rights keep from a client that is here be owed to it no more: it was withheld."""
        for client_id, here in self.here.items():
            owed = self.sessions[client_id].owed
            for payload, topic in list(owed.items()):
                if not self.rights.allow(Action.SUBSCRIBE, here.user, client_id, topic):
                    del owed[payload]

    # -- coming and going --------------------------------------------------------------------------------------------

    def connect(
        self, client_id: str, user: str | None, version: int, expiry_s: int, *, clean: bool, lazy: bool
    ) -> None:
        """Come, and be let in if and only if that is right."""
        if version == V311:
            expiry_s = 0 if clean else 3_600
        before = self.sessions.get(client_id)
        is_theirs = before is None or before.is_released or before.owner == user
        is_welcome = is_theirs and self.rights.allow_client(user, client_id)
        self.count += 1
        will_topic = TOPICS[self.count % len(TOPICS)]
        has_will = self.count % 3 == 0 and self.rights.allow(Action.PUBLISH, user, client_id, will_topic)
        peer = self.rig.connecting(
            client_id,
            version=version,
            clean=clean,
            expiry_s=expiry_s if version == V5 else 0,
            username=user,
            password=None if user is None else b"x",
            will=Will(will_topic, b"will %d" % self.count) if has_will else None,
        )
        self.rig.settle()
        answer = peer.inbox.pop(0)
        assert isinstance(answer, Connack)
        assert (answer.code == 0) is is_welcome, (client_id, user, before, answer)
        if not is_welcome:
            assert peer.is_closed
            assert not peer.inbox
            self.settle()
            return
        if before is not None and client_id in self.here and not before.expiry_s:
            before = None  # the connection that gives way was all of its session
        if before is None or clean or not answer.session_present:
            assert before is None or clean or before.is_released, "a session ended by itself"
            assert not answer.session_present
            self._ended(client_id)
            before = Session(user, expiry_s, version)
        elif before.is_released:
            before.owed.clear()  # whoever it is now, rights decide what comes of it
        self.here.pop(client_id, None)
        before.owner, before.expiry_s, before.version, before.is_released = user, expiry_s, version, False
        self.sessions[client_id], self.here[client_id] = before, Here(peer, user, is_lazy=lazy)
        self.in_ward.discard(client_id)
        self.settle()

    def come_back(self, client_id: str, *, lazy: bool) -> None:
        """Come to a session as its owner, if there is one."""
        session = self.sessions.get(client_id)
        if session is not None and client_id not in self.here:
            self.connect(client_id, session.owner, session.version, session.expiry_s, clean=False, lazy=lazy)

    def _ended(self, client_id: str) -> None:
        self.sessions.pop(client_id, None)
        self._served_no_more(client_id)

    def _gone(self, client_id: str) -> None:
        del self.here[client_id]
        self.in_ward.discard(client_id)
        if not self.sessions[client_id].expiry_s:
            self._ended(client_id)

    def drop(self, client_id: str) -> None:
        """Lose a connection."""
        if client_id in self.here:
            self.here[client_id].peer.drop()
            self.settle()

    def restart(self, *, from_view: bool) -> None:
        """Kill the broker and start another on its log, or on its view."""
        self.rig.settle()
        put, drop = self.rig.state.view.changes()
        self.view = {key: row for key, row in (self.view | put).items() if key not in drop}
        self.rig.log.sync()
        if from_view:
            state = BrokerState.restore(NODE, self.view.items())
        else:
            self.view, state = {}, BrokerState(NODE)
            for fact in read(self.folder, NODE):
                state.apply(fact)
        self.rig.close()
        for client_id in list(self.here):
            self._gone(client_id)
        self.retained.pop("$SYS/x", None)  # the broker says it again when its time comes
        self.rig = self._rig(state)
        self.settle()

    def change_rights(self, given: NaiveRights) -> None:
        """Let other rights decide from now on."""
        self.rights = given
        self.rig.broker.replace_rights(given.real())
        self.rig.flush()
        self.settle()
        for client_id, session in self.sessions.items():
            self._check_shares(client_id, session)

    def _check_shares(self, client_id: str, session: Session) -> None:
        """See which shares rights have ended, and that those may have all they ask for that are left."""
        left = {subscription.subject_filter for subscription in self.rig.state.hold.subscriptions(f"$mqtt/{client_id}")}
        for wanted in [each for each in session.wanted if is_shared(each)]:
            if wanted not in left:
                del session.wanted[wanted]
                self._served_no_more(client_id)
            elif not session.is_released:
                for topic in TOPICS:
                    is_admitted = admits(wanted.removeprefix(SHARE), topic)
                    is_allowed = self.rights.allow(Action.SUBSCRIBE, session.owner, client_id, topic)
                    assert is_allowed or not is_admitted, (client_id, session, topic)

    def _served_no_more(self, client_id: str) -> None:
        """Let nothing be owed through shares that *client_id* has served: it may have been given it, and lost it."""
        for payload, (_, serving) in list(self.shared.items()):
            if client_id in serving:
                del self.shared[payload]

    # -- subscribing and publishing ----------------------------------------------------------------------------------

    def subscribe(self, client_id: str, wanted: str, qos: int, *, shared: bool) -> None:
        """Subscribe; what is retained comes at once, all that is allowed and nothing else."""
        if client_id not in self.here:
            return
        asked = SHARE + wanted if shared else wanted
        here = self.here[client_id]
        here.came.clear()
        here.peer.send(subscribing(asked, qos=qos))
        self.rig.settle()
        (answer,) = [each for each in here.peer.inbox if isinstance(each, Suback)]
        here.peer.inbox.remove(answer)
        if answer.codes[0] < 0x80:
            session = self.sessions[client_id]
            session.wanted[asked] = answer.codes[0]
        self.settle()
        came = {(each.topic, each.payload) for each in here.came if each.retain}
        due = {
            (topic, payload)
            for topic, payload in self.retained.items()
            if admits(wanted, topic) and not shared and answer.codes[0] < 0x80
            and self._may(Action.SUBSCRIBE, client_id, topic)
        }  # fmt: skip
        # A copy of the same notification that a lazy client did not answer has the packet identifier that this needs.
        assert came == due or (here.is_lazy and came < due), (client_id, here.user, asked, answer)

    def publish(self, client_id: str, topic: str, qos: int, *, retain: bool) -> None:
        """Publish; everybody who is here and may have it gets it, and the absent are owed it."""
        if client_id == SOURCE and SOURCE not in self.here:
            self.connect(SOURCE, "op", V5, 0, clean=True, lazy=False)
        if client_id not in self.here:
            return
        self.count += 1
        payload = b"message %d" % self.count
        publisher = self.here[client_id]
        for here in self.here.values():
            here.came.clear()
        may = self._may(Action.PUBLISH, client_id, topic)
        present = set(self.here)
        if may:
            self._owe(topic, payload, qos)
            if retain:
                self.retained[topic] = payload
        publisher.peer.send(publishing(topic, payload, qos, self.count if qos else 0, retain=retain))
        self.settle_published(publisher, qos, is_accepted=may)
        for each in present & set(self.here):
            session, here = self.sessions[each], self.here[each]
            is_wanted = any(admits(wanted, topic) for wanted in session.wanted)
            if may and is_wanted and not here.is_lazy and self._may(Action.SUBSCRIBE, each, topic):
                assert payload in {packet.payload for packet in here.came}, (each, topic, session)

    def publish_all(self, client_id: str, messages: list[tuple[str, int, bool]]) -> None:
        """Publish some messages, one after the other."""
        for topic, qos, retain in messages:
            self.publish(client_id, topic, qos, retain=retain)

    def settle_published(self, publisher: Here, qos: int, *, is_accepted: bool) -> None:
        """Bring a publication to its end, and look at how it was answered where the version has words for it."""
        self.rig.settle()
        for packet in list(publisher.peer.inbox):
            if isinstance(packet, Puback | Pubrec) and packet.packet_id == self.count:
                publisher.peer.inbox.remove(packet)
                if publisher.peer.version == V5:
                    assert (packet.code < 0x80) is is_accepted
                if qos == 2 and packet.code < 0x80:
                    publisher.peer.send(Pubrel(packet.packet_id))
        self.settle()

    def _owe(self, topic: str, payload: bytes, qos: int) -> None:
        if not qos:
            return
        for session in self.sessions.values():
            for wanted, granted in session.wanted.items():
                if granted and session.expiry_s and not session.is_released and admits(wanted, topic):
                    session.owed[payload] = topic
        for wanted in {each for session in self.sessions.values() for each in session.wanted if is_shared(each)}:
            serving = {client_id: found for client_id, found in self.sessions.items() if wanted in found.wanted}
            is_lasting = all(s.expiry_s and s.wanted[wanted] and not s.is_released for s in serving.values())
            if admits(wanted.removeprefix(SHARE), topic) and is_lasting:
                self.shared[payload] = (topic, set(serving))  # where several shares want it, the last one found
        if any(granted and admits(wanted, topic) for wanted, granted in self.ward.items()):
            self.ward_owed[payload] = topic
        self.forgive()

    def tell_system(self) -> None:
        """Let the broker say something of itself."""
        self.count += 1
        payload = b"message %d" % self.count
        self.retained["$SYS/x"] = payload
        self.rig.broker.tell_system({"$SYS/x": payload.decode()}, self.rig.now)
        self.rig.flush()
        self.settle()

    # -- named sessions ----------------------------------------------------------------------------------------------

    def ask(self, client_id: str, verb: str, **members: Any) -> bool:
        """Ask for something, and tell whether it was done; what else came is judged."""
        here = self.here[client_id]
        is_done = bool(here.peer.ask(verb, **members)["ok"])
        if is_done and verb == "join":
            self.in_ward.add(client_id)
            for payload in [each for each in self.ward_owed if (client_id, each) in self.received]:
                del self.ward_owed[payload]  # what it has through its private session, it takes now (rule 6)
        self.settle()
        return is_done

    def make_ward(self) -> None:
        """Have a named session of ann's that bob may use too."""
        self.connect("maker", "op", V5, 0, clean=True, lazy=False)
        users = {name: ["join", "change subscriptions"] for name in ("ann", "bob")}
        assert self.ask("maker", "create", session=WARD, list={"owner": "op", "users": users})
        self.drop("maker")

    def join(self, client_id: str) -> None:
        """Join the named session."""
        if client_id in self.here and self.here[client_id].peer.version == V5:
            self.ask(client_id, "join", session=WARD)

    def fill_ward(self, wanted: str) -> None:
        """Have everybody who may join the named session, and one subscribe for it."""
        for client_id in list(self.here):
            self.join(client_id)
        for client_id in list(self.in_ward):
            self.want_in_ward(client_id, wanted, 1)

    def serve(self, wanted: str) -> None:
        """Have everybody who may serve a share."""
        for client_id in list(self.here):
            self.subscribe(client_id, wanted, 1, shared=True)

    def want_in_ward(self, client_id: str, wanted: str, qos: int) -> None:
        """Subscribe for the named session."""
        if client_id in self.here and client_id in self.in_ward and not wanted.startswith("$"):
            for each in self.here.values():
                each.came.clear()
            if self.ask(client_id, "subscribe", session=WARD, topic=wanted, qos=qos):
                self.ward[wanted] = min(qos, 1)

    def release(self, client_id: str) -> None:
        """Have an operator release a session."""
        if client_id not in self.sessions:
            return
        self.connect("operator", "op", V5, 0, clean=True, lazy=False)
        assert self.ask("operator", "release", client=client_id)
        self.drop("operator")
        self.settle()
        if client_id in self.sessions:  # else it ended with its connection
            self.sessions[client_id].is_released = True
            self.sessions[client_id].owed.clear()
            self._served_no_more(client_id)

    # -- the end -----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Let everybody come once more and look at whether all is there that they are owed."""
        self.forgive()
        for client_id in list(self.here):
            self.drop(client_id)
        for client_id, session in list(self.sessions.items()):
            if session.is_released or not self.rights.allow_client(session.owner, client_id):
                self._served_no_more(client_id)
                continue
            self.connect(client_id, session.owner, session.version, session.expiry_s, clean=False, lazy=False)
            self.forgive()
            assert not session.owed, (client_id, session)
        assert not self.shared
        for user in ("ann", "bob"):
            if not self.rights.allow_client(user, f"b new {user}"):
                continue
            self.connect(f"b new {user}", user, V5, 0, clean=True, lazy=False)
            assert self.ask(f"b new {user}", "join", session=WARD)
            left = [
                topic
                for topic in self.ward_owed.values()
                if self.rights.allow(Action.SUBSCRIBE, user, f"b new {user}", topic)
            ]
            assert not left, (user, self.ward_owed)
        self._check_receipts()

    def _check_receipts(self) -> None:
        """See that the log says delivered only of what was."""
        self.rig.log.sync()
        facts = list(read(self.folder, NODE))
        bodies = {fact.seq: fact.body for fact in facts if isinstance(fact, Notification)}
        for fact in facts:
            if isinstance(fact, Receipt) and fact.outcome is Outcome.DELIVERED:
                assert (fact.device, bodies[fact.notification.seq]) in self.received, fact


# -- steps -------------------------------------------------------------------------------------------------------------

Step = Callable[[Judge], None]


def _step(name: str, *given: st.SearchStrategy[object], **named: st.SearchStrategy[object]) -> st.SearchStrategy[Step]:
    @st.composite
    def step(draw: st.DrawFn) -> Step:
        arguments = [draw(each) for each in given]
        options = {key: draw(each) for key, each in named.items()}

        def act(judge: Judge) -> None:
            getattr(judge, name)(*arguments, **options)

        act.__qualname__ = act.__name__ = f"{name}{arguments}{options}"
        return act

    return step()


clients, qualities = st.sampled_from(CLIENTS), st.integers(0, 2)
connecting = _step(
    "connect",
    clients,
    st.sampled_from(USERS),
    st.sampled_from([V5, V5, V311]),
    st.sampled_from([0, 3_600]),
    clean=st.booleans(),
    lazy=st.sampled_from([False, False, True]),
)
subscribing_ = _step(
    "subscribe", clients, st.sampled_from(FILTERS), qualities, shared=st.sampled_from([False, False, True])
)
messages = st.tuples(st.sampled_from(TOPICS), qualities, st.sampled_from([False, False, True]))
publishing_ = _step(
    "publish_all", st.sampled_from([*CLIENTS, *[SOURCE] * 6]), st.lists(messages, min_size=2, max_size=6)
)
steps = st.one_of(
    connecting,
    _step("come_back", clients, lazy=st.sampled_from([False, False, True])),
    *[_step("come_back", clients, lazy=st.just(value=False))] * 5,
    subscribing_,
    subscribing_,
    publishing_,
    publishing_,
    publishing_,
    _step("drop", clients),
    _step("change_rights", rights),
    _step("restart", from_view=st.booleans()),
    _step("tell_system"),
    _step("join", clients),
    _step("fill_ward", st.sampled_from(["#", "home/+"])),
    _step("serve", st.sampled_from(["#", "home/+", "a/#"])),
    _step("want_in_ward", clients, st.sampled_from(FILTERS), qualities),
    _step("release", clients),
)


@contextmanager
def _judging(given: NaiveRights, who: tuple[str | None, ...]) -> Iterator[Judge]:
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(Path(folder), given)
        try:
            judge.make_ward()
            for client_id, user in zip(CLIENTS, who, strict=True):  # else most histories would be of empty rooms
                judge.connect(client_id, user, V5, 3_600, clean=True, lazy=False)
                judge.subscribe(client_id, "#", 1, shared=False)
                judge.subscribe(client_id, f"home/{user}", 1, shared=False)
            yield judge
        finally:
            judge.rig.close()


@given(first=rights, who=st.tuples(*[st.sampled_from(USERS)] * 3), what=st.lists(steps, min_size=20, max_size=40))
def test_nobody_receives_what_rights_refuse_and_nobody_loses_by_it(
    first: NaiveRights, who: tuple[str | None, ...], what: list[Step]
) -> None:
    """Two users, one broker, and any history."""
    with _judging(first, who) as judge:
        for step in what:
            step(judge)
            judge.forgive()
        judge.end()
