"""Policies: clients store, remove and choose them (SUBLIM, sections 4.1 and 4.2; docs/reference/mqtt.md, "Policies").

| topic | payload |
|---|---|
| ``$whimbrel/policy/<name>`` | the text of a policy; an empty payload removes it |
| ``$whimbrel/policy`` | the name of the policy that this device chooses, or empty for none; or a request as JSON |

Rule: a policy is parsed and checked before it is accepted; the answer has the code and position of an error in it.
Rule: only its owner may replace or remove a policy: the verified user who stored it or, without a verified user, the
client with the session that stored it. The number of policies per owner is limited.
Rule: a change is a fact, and durable before it is answered at QoS 1 and 2.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from whimbrel.broker.deliver.shaping import PolicyHandler
from whimbrel.broker.limits.operator_notices import Notice
from whimbrel.broker.limits.work_budget import WorkBudget
from whimbrel.broker.publish.publication_keys import check_unlocked
from whimbrel.broker.publish.publishing import PublishHandler
from whimbrel.broker.requests.pages import MAX_ROWS, Row, cost_of_rows, page_of
from whimbrel.broker.requests.policy_index import PolicyIndex
from whimbrel.broker.settings.config import Config
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.waiting.commit_queue import CommitQueue
from whimbrel.broker.waiting.long_work import LongWork
from whimbrel.broker.wire.clients import Link, LiveClient
from whimbrel.broker.wire.json_answers import send_answer
from whimbrel.broker.wire.notices import POLICIES, POLICY, is_told
from whimbrel.broker.wire.sender import Sender
from whimbrel.errors import InvalidValueError, MalformedBodyError, Phrase, PolicyError, description_of
from whimbrel.hold.private import client_of, is_private, private_session
from whimbrel.language.policies.reading.parser import finish
from whimbrel.model.attributes import Limits
from whimbrel.model.facts import PolicyChange, PolicyChanged
from whimbrel.model.json_body import read_json
from whimbrel.model.notification import AT_LEAST_ONCE
from whimbrel.model.policies import MAX_POLICY_BYTES
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.packets import Publish, Pubrec
from whimbrel.node.publication import KeptNotification
from whimbrel.shape.agents import admitting
from whimbrel.shape.state import PolicyVersion, policy_bytes

__all__ = ["Policies", "check_policy_name", "owner_of"]

_MAX_NAME_BYTES = 255
_LONGEST_REASON = 1_000
_BYTES_A_UNIT = 2
"""Bytes of a stored policy that cost one unit of work; parsing and compiling 16 KB takes about 30 ms."""
_BYTES_A_UNIT_SENT = 64
"""Bytes of a shown policy that cost one unit of work."""
_LONG = 1_024
"""Length in characters above which a policy is parsed over several turns of the event loop."""
_LIMITS = Limits(max_bytes=MAX_POLICY_BYTES)
_SUSPENDED = "the policy {} failed too often in a row with what {} published; {} gets {} of that until it is put anew"
_SLOWED = (
    "the policy {} took {:,} steps for one notification, more than its share of policies.steps_per_second; {} waits"
)
_FORM = 'the name of a policy, nothing, or one of {"choose": name or null}, {"list": true} and {"show": name}'
_LIST_MEMBERS = {"list", "after", "most", "own", "id"}


def check_policy_name(value: object) -> str:
    """Return *value* if it is a valid policy name, or raise ``InvalidValueError``."""
    if (
        isinstance(value, str)
        and value.isprintable()
        and 1 <= len(value.encode()) <= _MAX_NAME_BYTES
        and value[0] not in "${"
        and not set(value) & set("/+#")
    ):
        return value
    allowed = f"1 to {_MAX_NAME_BYTES} bytes, no /, + or #, nothing unprintable, and neither $ nor {{ at the beginning"
    raise InvalidValueError("policy", value[:40] if isinstance(value, str) else description_of(value), allowed)


def owner_of(user: str | None, client_id: str) -> str:
    """Return the owner of a client's policies: its verified user or, without one, its private session."""
    return private_session(client_id) if user is None else user


class Policies:
    """Handles the requests and CONNECTs of clients that concern policies."""

    def __init__(
        self,
        config: Config,
        commits: CommitQueue,
        state: BrokerState,
        sender: Sender,
        publishing: PublishHandler,
        shaping: PolicyHandler,
        long_work: LongWork,
    ) -> None:
        publishing.policy, shaping.on_suspended, shaping.on_slowed = (
            self.handle,
            self.notify_suspended,
            self.notify_slowed,
        )
        self._commits, self._state, self._sender, self._publishing = commits, state, sender, publishing
        self._shape, self._agents = state.decisions.shape, state.decisions.agents
        self._index = PolicyIndex(self._shape.policies.values())
        self._agents.most = max(self._agents.most, config.policies.count)
        self._limits, self._long_work = config.policies.limits, long_work
        self._most, self._most_each = config.policies.count, config.policies.per_owner
        self._waiting: dict[Link, deque[tuple[LiveClient, Publish, int]]] = {}
        """Per link, messages that wait behind a policy that is being parsed."""
        self.notices: list[Notice] = []
        self._budget = WorkBudget(config.limits.packet_work, config.limits.session_work_per_second)

    def handle(self, link: Link, client: LiveClient, packet: Publish, now: int) -> None:
        """Handle a message to a topic of policies.

        At QoS 1 and 2 its PUBLISH already counts against the receive maximum. While a long policy of the same
        connection is being parsed, the message waits.
        """
        waiting = self._waiting.get(link)
        if waiting is None:
            self._waiting[link] = deque([(client, packet, now)])
            self._long_work.begin(link, self._taking_in(link))
        else:  # an earlier policy of this link is still being parsed
            waiting.append((client, packet, now))

    def _taking_in(self, link: Link) -> Iterator[None]:
        waiting = self._waiting[link]
        try:
            while waiting:
                yield from self._receiving(link, *waiting.popleft())
        finally:
            del self._waiting[link]

    def _receiving(self, link: Link, client: LiveClient, packet: Publish, now: int) -> Iterator[None]:
        """Handle one message to a topic of policies, yielding during the parsing of a long policy."""
        refusal = self._publishing.admission.report_refusal(link, client, packet)
        request_id: object = None
        try:
            if refusal is not None:
                raise ProtocolError(*refusal)
            check_unlocked(packet, link.keyring, is_ours=link.is_ours)
            self._budget.packet(client.session).spend(1 + len(packet.payload) // _BYTES_A_UNIT, now)
            if packet.topic == POLICY:
                asked = _parse_request(packet.payload)
                request_id = asked.get("id")
                if "list" in asked:
                    yield from self._list(link, client, packet, asked, now)
                else:
                    self._answer_or_choose(link, client, packet, asked, now)
            else:
                yield from self._put(link, client, packet, now)
        except PolicyError as error:
            found = {"error": int(error.code), "line": error.line, "column": error.column}
            reason = f"policy error {error.code:d} at line {error.line}, column {error.column}: {error.reason}"
            self._refuse(link, client, packet, request_id, ReasonCode.PAYLOAD_FORMAT_INVALID, reason, found)
        except InvalidValueError as error:
            self._refuse(link, client, packet, request_id, ReasonCode.PAYLOAD_FORMAT_INVALID, str(error), {})
        except ProtocolError as error:
            self._refuse(link, client, packet, request_id, error.code, error.reason, {})

    # -- store and remove --------------------------------------------------------------------------------------------

    def _put(self, link: Link, client: LiveClient, packet: Publish, now: int) -> Iterator[None]:
        name = check_policy_name(packet.topic.removeprefix(POLICIES))
        self._check_owner(link, client, name)
        owner = owner_of(link.user, client.id)
        if not packet.payload:
            if name not in self._shape.policies:
                raise _unknown(name)
            self._enter(link, client, packet, None, self._fact(PolicyChange.REMOVED, owner, now, name=name))
            return
        self._check_room(name, owner)
        if len(packet.payload) > MAX_POLICY_BYTES:
            raise InvalidValueError(
                "policy", Phrase(f"{len(packet.payload)} bytes"), f"at most {MAX_POLICY_BYTES} bytes"
            )
        try:
            text = packet.payload.decode()
        except UnicodeDecodeError:
            raise InvalidValueError("policy", Phrase("bytes that are no UTF-8"), "text") from None
        pieces = admitting(text, self._limits)
        if len(text) > _LONG:
            policy = yield from pieces
        else:
            policy = finish(pieces)
        self._check_room(name, owner)  # other clients may have stored policies meanwhile
        self._check_memory(name, text)
        self._check_owner(link, client, name)
        self._agents.put(policy)
        self._enter(link, client, packet, None, self._fact(PolicyChange.PUT, owner, now, name=name, text=text))

    def _check_memory(self, name: str, text: str) -> None:
        """Refuse a policy if memory is full; one that replaces a longer policy needs no memory."""
        before = self._shape.policies.get(name)
        grows = policy_bytes(text) - (0 if before is None else policy_bytes(before.text))
        full = self._state.memory.refusal(grows, is_lasting=True) if grows > 0 else None
        if full is not None:
            raise ProtocolError(*full)

    def _check_owner(self, link: Link, client: LiveClient, name: str) -> None:
        """Refuse to change a policy of another owner; one stored before users existed belongs to its session."""
        before = self._shape.policies.get(name)
        if before is not None and before.owner not in {link.user, private_session(client.id)}:
            whose = "client" if is_private(before.owner) else "user"
            raise ProtocolError(ReasonCode.NOT_AUTHORIZED, f"the policy {name!r} is another {whose}'s")

    def _check_room(self, name: str, owner: str) -> None:
        policies = self._shape.policies
        if name in policies:
            return
        reason = None
        if len(policies) >= self._most:
            reason = f"{self._most} policies, no more are allowed (policies.count)"
        elif len(self._index.of_owner(owner)) >= self._most_each:
            reason = f"{self._most_each} policies of one owner, no more are allowed (policies.per_owner)"
        if reason is not None:
            raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, reason)

    def _fact(
        self,
        change: PolicyChange,
        owner: str,
        now: int,
        *,
        name: str | None,
        text: str | None = None,
        device: str | None = None,
    ) -> PolicyChanged:
        commits = self._commits
        return PolicyChanged(
            node=commits.node,
            seq=commits.seq,
            changed_at=commits.now(now),
            change=change,
            owner=owner,
            name=name,
            text=text,
            device=device,
        )

    def _enter(self, link: Link, client: LiveClient, packet: Publish, request_id: object, fact: PolicyChanged) -> None:
        if packet.qos > AT_LEAST_ONCE:
            client.receiving.add(packet.packet_id)
        is_owed = fact.change is not PolicyChange.CHOSEN or client.is_persistent or packet.qos > 0
        self._take(fact, partial(self._apply_change, link, client, packet, request_id, fact), is_owed=is_owed)

    def _take(self, fact: PolicyChanged, apply: Callable[[], None], *, is_owed: bool) -> None:
        self._commits.enter(fact, apply, is_owed=is_owed)
        before = self._shape.policies.get(fact.name or "")
        self._state.note(fact)
        self._index.change(before, self._shape.policies.get(fact.name or ""))

    def _apply_change(
        self, link: Link, client: LiveClient, packet: Publish, request_id: object, fact: PolicyChanged
    ) -> None:
        self._state.apply(fact)
        told = {"policy": fact.name, "change": fact.change.value, "version": fact.seq}
        self._answer(link, client, packet, request_id, told)

    def give(self, owner: str, heir: str, now: int) -> None:
        """Transfer all policies of *owner* to *heir*, by storing each again."""
        names = self._index.of_owner(owner)
        for name in names.behind("", len(names)):
            text = self._shape.policies[name].text
            fact = self._fact(PolicyChange.PUT, heir, now, name=name, text=text)
            self._take(fact, partial(self._state.apply, fact), is_owed=False)

    # -- choose ------------------------------------------------------------------------------------------------------

    def choice(self, link: Link, device: str, name: str | None, now: int) -> PolicyChanged | None:
        """Return the log record of a device's choice of a policy, or None if the choice is not new.

        *name* is None if the device chooses no policy.
        """
        if self._shape.chosen(device) == name:
            return None
        return self._fact(PolicyChange.CHOSEN, owner_of(link.user, device), now, name=name, device=device)

    def check_known(self, name: str | None) -> None:
        """Raise ``ProtocolError`` if no policy *name* exists."""
        if name is not None and check_policy_name(name) not in self._shape.policies:
            raise _unknown(name)

    def _answer_or_choose(
        self, link: Link, client: LiveClient, packet: Publish, asked: Mapping[str, object], now: int
    ) -> None:
        request_id, wanted = asked.get("id"), set(asked) - {"id"}
        if wanted == {"show"}:
            name = check_policy_name(asked["show"])
            version = self._shape.policies.get(name)
            if version is None:
                raise _unknown(name)
            self._budget.packet(client.session).spend(len(version.text) // _BYTES_A_UNIT_SENT, now)
            self._answer(link, client, packet, request_id, {**self._describe(version), "text": version.text})
        elif wanted == {"choose"}:
            chosen = None if asked["choose"] is None else check_policy_name(asked["choose"])
            self.check_known(chosen)
            fact = self.choice(link, client.id, chosen, now)
            if fact is None:
                told = {"policy": chosen, "change": PolicyChange.CHOSEN.value, "version": None}
                self._answer(link, client, packet, request_id, told)
            else:
                self._enter(link, client, packet, request_id, fact)
        else:
            raise InvalidValueError("request", Phrase(", ".join(sorted(wanted))[:80] or "no member"), _FORM)

    # -- list --------------------------------------------------------------------------------------------------------

    def _list(
        self, link: Link, client: LiveClient, packet: Publish, asked: Mapping[str, object], now: int
    ) -> Iterator[None]:
        """Answer with a page of policies, sorted by name, yielding before each step."""
        after, most, is_own = _page_asked_for(asked)
        index = self._index.of_owner(owner_of(link.user, client.id)) if is_own else self._index.names
        names = index.behind(after, most + 1)
        self._budget.packet(client.session).spend(cost_of_rows(len(names)), now)
        page, count = yield from page_of(names, most, self._row)
        told = {"policies": page, "next": names[count - 1] if count < len(names) else None}
        self._answer(link, client, packet, asked.get("id"), told)

    def _row(self, name: str) -> Row | None:
        version = self._shape.policies.get(name)
        return None if version is None else self._describe(version)

    def _describe(self, version: PolicyVersion) -> Row:
        return {
            "policy": version.name,
            "version": version.seq,
            "owner": None if is_private(version.owner) else version.owner,
            "suspended": self._shape.has_suspended(version.name),
            "devices": self._shape.choices.devices(version.name),
        }

    # -- notify ------------------------------------------------------------------------------------------------------

    def notify_suspended(self, version: PolicyVersion, device: str, publisher: str | None, now: int) -> None:
        """Notify the owner of a policy, the device and the operator that it is suspended for a device and publisher."""
        policy = self._agents.of(version.text)
        gets = "everything as it is" if policy is not None and policy.sends_when_suspended else "nothing"
        text = _SUSPENDED.format(version.name, publisher or "an unknown client", device, gets)
        self._notify(version, device, text, {"suspended": True, "device": device, "publisher": publisher}, now)

    def notify_slowed(self, version: PolicyVersion, device: str, steps: int, now: int) -> None:
        """Notify the owner of a policy, the device and the operator that the device pauses because of its steps."""
        text = _SLOWED.format(version.name, steps, device)
        self._notify(version, device, text, {"slowed": True, "device": device, "steps": steps}, now)

    def _notify(self, version: PolicyVersion, device: str, text: str, members: Mapping[str, object], now: int) -> None:
        """Log *text*, and publish *members* as JSON to the owner of a policy and to the device.

        The topic is that of the policy with the first name in *members* as its last level. Only clients that subscribe
        to the topic get the message.
        """
        user = None if is_private(version.owner) else version.owner
        self.notices.append(Notice(text, client_of(version.owner) or "", user))
        topic = f"{POLICIES}{version.name}/{next(iter(members))}"
        tree = {"policy": version.name, "version": version.seq, **members}
        message = KeptNotification.live(topic, json.dumps(tree, ensure_ascii=False).encode())
        for client in list(self._state.clients.values()):
            link = client.link
            if link is None or not is_told(topic, self._state.subscribed_to.get(client.session, ())):
                continue
            if owner_of(link.user, client.id) == version.owner or client.id == device:
                self._sender.news(link, message, (), now)

    def _answer(
        self, link: Link, client: LiveClient, packet: Publish, request_id: object, told: Mapping[str, object]
    ) -> None:
        if packet.qos == AT_LEAST_ONCE:
            self._publishing.answers.acknowledge(link, packet.packet_id, True)  # the broker counts as its subscriber
        elif packet.qos:
            client.receiving.discard(packet.packet_id)
            client.remember_answer(packet.packet_id)
            if client.link is link:
                self._sender.say(link, Pubrec(packet.packet_id))
        answer = {"request": "policy", "id": request_id, "ok": True, **told}
        send_answer(self._sender, link, packet, answer, self._commits.last_at)

    def _refuse(
        self,
        link: Link,
        client: LiveClient,
        packet: Publish,
        request_id: object,
        code: ReasonCode,
        reason: str,
        found: Mapping[str, object],
    ) -> None:
        reason = reason[:_LONGEST_REASON]
        self._publishing.answers.refuse(link, client, packet, code, reason)
        refused = {"request": "policy", "id": request_id, "ok": False, "code": int(code), "reason": reason}
        send_answer(self._sender, link, packet, {**refused, **found}, self._commits.last_at)


def _parse_request(body: bytes) -> Mapping[str, object]:
    """Parse a request published to ``$whimbrel/policy``; a bare name chooses that policy, an empty body none."""
    if not body.startswith(b"{"):
        try:
            return {"choose": body.decode() or None}
        except UnicodeDecodeError:
            raise InvalidValueError("request", Phrase("bytes that are no UTF-8"), _FORM) from None
    try:
        tree = read_json(body, limits=_LIMITS)
    except MalformedBodyError:
        raise InvalidValueError("request", Phrase("a body that is no object of JSON"), _FORM) from None
    if not isinstance(tree.get("id"), str | int | float | None):
        raise InvalidValueError("id", description_of(tree.get("id")), "text or a number")
    return tree


def _page_asked_for(asked: Mapping[str, object]) -> tuple[str, int, bool]:
    """Parse a list request: the name after which it begins, its most rows, and whether only own policies are listed."""
    after, most, is_own = asked.get("after", ""), asked.get("most", MAX_ROWS), asked.get("own", False)
    if set(asked) - _LIST_MEMBERS or asked["list"] is not True:
        found = ", ".join(sorted(set(asked) - {"id"}))[:80]
        raise InvalidValueError("request", Phrase(found), '{"list": true}, perhaps with after, most and own')
    if not isinstance(after, str):
        raise InvalidValueError("after", description_of(after), "the name that the page before says is next")
    if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= MAX_ROWS:
        found = str(most) if isinstance(most, int) else description_of(most)
        raise InvalidValueError("most", Phrase(found), f"a whole number from 1 to {MAX_ROWS}")
    if not isinstance(is_own, bool):
        raise InvalidValueError("own", description_of(is_own), "true or false")
    return after, most, is_own


def _unknown(name: str) -> ProtocolError:
    return ProtocolError(
        ReasonCode.TOPIC_NAME_INVALID, f"there is no policy {name!r}; publish its text to {POLICIES}{name}"
    )
