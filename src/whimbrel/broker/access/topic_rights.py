"""Rights: the rules of a file about who may publish and subscribe to which topics, and use which client identifiers.

    default = "deny"              # the answer if no rule decides; "allow" if not given

    [[rule]]
    user = "ann"                  # also: group = "…", client = "…"; all that are given must fit
    topics = ["home/{user}/#"]    # topic filters; {user} and {client} stand for the client's own names
    allow = ["publish", "subscribe"]   # or deny = […]

    [[client]]                    # see ``client_ids``
    ids = ["{user}", "{user}:*"]

Rule: the first rule that fits client, action and topic decides.
Rule: ``"*"`` fits every user or client, ``user = ""`` clients that gave no user name.
Rule: a user name counts only if the client has proved it (by password or certificate); otherwise callers pass ``None``.
Rule: a placeholder for a name that is empty or has ``+``, ``#`` or ``/`` in it never fits, nor one that would make a
filter begin with ``$``. Otherwise a client that calls itself ``#`` would get the rights to all topics.
Rule: a rule decides about a subscription if it *covers* it: the rule admits every topic that the subscription admits.
So a rule that denies only some topics does not refuse a wider subscription. Therefore rights are checked at every
delivery too (``may_receive``): denied topics are not delivered through a wildcard.
Rule: a shared subscription is stricter, because a message that one member may not receive would be lost for all. It is
allowed only if no topic in it is denied (``may_share``).
Rule: ``anywhere`` is the right to subscribe with ``near=any``. If there is a rights file, only a rule grants it.
Rule: ``operate`` is the right to requests that concern the sessions of others. No default grants it, only a rule.

Rules are found through an index of topic filters, in which ``+`` replaces each level that has a placeholder; the rules
found are then checked in order. A filter that covers a subscription admits each of its topics. So a search for one
made-up topic of the subscription finds all rules that may cover it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from whimbrel.broker.access.client_ids import ClientIds, ClientRule
from whimbrel.broker.access.users import check_group, check_user_name
from whimbrel.broker.settings.config_files import read_toml
from whimbrel.broker.settings.fields import ConfigError, nearest, refused_value
from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.match.topics import TopicIndex, check_topic_filter, matches
from whimbrel.model.bounds import name

__all__ = ["Action", "Rights", "Rule", "covers", "overlaps"]

MAX_RULES = 10_000
MAX_FILTERS = 100_000
EVERY_NAME = "*"
_PLACEHOLDER = re.compile(r"\{(user|client)\}")
_BRACED = re.compile(r"\{[^{}/]*\}")
_UNSAFE = re.compile(r"[+#/]")
_FRESH = "\0"  # a topic level that no filter can name, because MQTT forbids this character
_MAX_CLIENT_BYTES = 65_535
_KEYS = ("default", "rule", "client")
_RULE_KEYS = ("user", "group", "client", "topics", "allow", "deny")
_CLIENT_KEYS = ("user", "group", "ids")
_DEFAULTS = {"allow": True, "deny": False}


class Action(Enum):
    """Action that a rule allows or denies; receiving is part of subscribing."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    ANYWHERE = "anywhere"
    """Subscribe with ``near=any``: receive publications for all areas, from any place."""
    OPERATE = "operate"
    """Send a request that concerns the sessions of others; the rule's topics are the topics of requests."""


def covers(rule_filter: str, requested_filter: str) -> bool:
    """Return whether *rule_filter* admits every topic that *requested_filter* admits."""
    if rule_filter.startswith(("+", "#")) and requested_filter.startswith("$"):
        return False
    rule, requested = rule_filter.split("/"), requested_filter.split("/")
    if requested in (["#"], ["", "#"]):
        requested.insert(-1, "+")  # admits the same topics, because no topic is empty
    is_rule_open, is_requested_open = rule[-1] == "#", requested[-1] == "#"
    if is_rule_open:
        rule.pop()
    if is_requested_open:
        requested.pop()
    if is_rule_open:
        requested = requested[: len(rule)]
    elif is_requested_open:
        return False
    return len(rule) == len(requested) and all(own in {"+", asked} for own, asked in zip(rule, requested, strict=True))


def overlaps(one: str, other: str) -> bool:
    """Return whether both filters admit a common topic."""
    if (one.startswith(("+", "#")) and other.startswith("$")) or (other.startswith(("+", "#")) and one.startswith("$")):
        return False
    ours, theirs = one.split("/"), other.split("/")
    for own, asked in zip(ours, theirs, strict=False):
        if "#" in {own, asked}:
            return True
        if own != asked and "+" not in {own, asked}:
            return False
    longer, shorter = (ours, theirs) if len(ours) >= len(theirs) else (theirs, ours)
    return len(longer) == len(shorter) or longer[len(shorter) :] == ["#"]  # "a/#" admits "a"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule: it allows or denies *actions* on *topics* to the clients that fit *user*, *group* and *client*."""

    topics: tuple[str, ...]
    actions: frozenset[Action]
    is_allowing: bool
    user: str | None = None
    """``None`` and ``"*"`` fit every user, the empty string a client that gave no user name."""
    group: str | None = None
    client: str | None = None

    def __post_init__(self) -> None:
        if self.user not in {None, "", EVERY_NAME}:
            check_user_name(self.user)
        if self.group is not None:
            check_group(self.group)
        if self.client is not None:
            name("client", self.client, max_bytes=_MAX_CLIENT_BYTES)
        if not self.topics:
            raise InvalidValueError("topics", [], "at least one topic filter")
        if not self.actions:
            raise InvalidValueError("allow" if self.is_allowing else "deny", [], "at least one action")
        for topic_filter in self.topics:
            _check_pattern(topic_filter)

    def fits(self, user: str | None, groups: Collection[str], client_id: str) -> bool:
        """Return whether this rule applies to the client *client_id* of *user*, who is in *groups*."""
        return (
            (self.user is None or self.user in {EVERY_NAME, user or ""})
            and (self.group is None or self.group in groups)
            and (self.client is None or self.client in {EVERY_NAME, client_id})
        )


class Rights:
    """All rules of a rights file; each method decides about one client and one topic. The rules never change."""

    OPEN: ClassVar[Rights]
    """The rights where there is no rights file: every client may do everything."""

    def __init__(
        self,
        rules: Sequence[Rule] = (),
        *,
        allows_by_default: bool = True,
        client_ids: Sequence[ClientRule] = (),
    ) -> None:
        self._allows_by_default = allows_by_default
        self.client_ids = ClientIds(client_ids)
        """The rules about the client identifiers that users may connect with."""
        self._entries: list[tuple[Rule, str]] = [(rule, pattern) for rule in rules for pattern in rule.topics]
        if len(rules) > MAX_RULES:
            raise InvalidValueError("number of rules", len(rules), f"at most {MAX_RULES}")
        if len(self._entries) > MAX_FILTERS:
            raise InvalidValueError("topic filters of all rules", len(self._entries), f"at most {MAX_FILTERS}")
        self._indexes = {action: TopicIndex() for action in Action}
        for number, (rule, pattern) in enumerate(self._entries):
            for action in rule.actions:
                self._indexes[action].add(_widen(pattern), number)
        self.asks_client = any(
            rule.client not in {None, EVERY_NAME} or "{client}" in pattern for rule, pattern in self._entries
        )
        """Whether a decision may depend on the client identifier."""

    @classmethod
    def read(cls, path: Path) -> Rights:
        """Return the rights in the file *path*; raise ``ConfigError`` naming the rule that is not valid."""
        return _rights(str(path), read_toml(path))

    @property
    def is_open(self) -> bool:
        """Whether every client may publish and subscribe to everything, so that no check is needed."""
        return self._allows_by_default and all(
            rule.actions <= {Action.OPERATE, Action.ANYWHERE} for rule, _ in self._entries
        )

    def may_publish(self, user: str | None, groups: Collection[str], client_id: str, topic: str) -> bool:
        """Return whether the client may publish to *topic*."""
        return self._decide(Action.PUBLISH, (user, groups, client_id), topic, partial(_admits, topic))

    def may_subscribe(self, user: str | None, groups: Collection[str], client_id: str, topic_filter: str) -> bool:
        """Return whether the client may subscribe to *topic_filter*, which is without ``$share/…/``."""
        levels = (_FRESH if level in {"+", "#"} else level for level in topic_filter.split("/"))
        witness = "/".join(levels)
        return self._decide(Action.SUBSCRIBE, (user, groups, client_id), witness, partial(_covers, topic_filter))

    def may_receive(self, user: str | None, groups: Collection[str], client_id: str, topic: str) -> bool:
        """Return whether *topic* may be delivered to the client, whatever it subscribed to."""
        return self._decide(Action.SUBSCRIBE, (user, groups, client_id), topic, partial(_admits, topic))

    def may_share(self, user: str | None, groups: Collection[str], client_id: str, topic_filter: str) -> bool:
        """Return whether the client may receive every topic that *topic_filter* admits, so that it may join a share.

        In doubt the answer is no: a rule that denies some of the topics counts even if an earlier rule allows these.
        """
        for rule, pattern in self._entries:
            if Action.SUBSCRIBE not in rule.actions or not rule.fits(user, groups, client_id):
                continue
            filled = _fill(pattern, user, client_id)
            if filled is None or not overlaps(filled, topic_filter):
                continue
            if not rule.is_allowing:
                return False
            if covers(filled, topic_filter):
                return True
        return self._allows_by_default

    def may_hear_anywhere(self, user: str | None, groups: Collection[str], client_id: str, topic_filter: str) -> bool:
        """Return whether a rule allows the client to subscribe with ``near=any``.

        Such a subscription ignores the areas of publications. The result is True if there is no rights file.
        """
        if self is Rights.OPEN:
            return True
        levels = (_FRESH if level in {"+", "#"} else level for level in topic_filter.split("/"))
        who, is_meant = (user, groups, client_id), partial(_covers, topic_filter)
        return self._decide(Action.ANYWHERE, who, "/".join(levels), is_meant, default=False)

    def may_operate(self, user: str | None, groups: Collection[str], client_id: str, topic: str) -> bool:
        """Return whether a rule lets the client send an operators' request, which has the topic *topic*."""
        who = (user, groups, client_id)
        return self._decide(Action.OPERATE, who, topic, partial(_admits, topic), default=False)

    def _decide(
        self,
        action: Action,
        client: tuple[str | None, Collection[str], str],
        topic: str,
        is_meant: Callable[[str], bool],
        *,
        default: bool | None = None,
    ) -> bool:
        """Return the decision of the first rule that applies to *client*, or *default* if no rule does.

        *topic* finds the candidate rules. A rule applies only if it fits *client*, and *is_meant* returns True for one
        of the rule's topic filters.
        """
        default = self._allows_by_default if default is None else default
        if not self._entries:
            return default
        for number in sorted(self._indexes[action].match(topic)):
            rule, pattern = self._entries[number]
            if rule.fits(*client):
                topic_filter = _fill(pattern, client[0], client[2])
                if topic_filter is not None and is_meant(topic_filter):
                    return rule.is_allowing
        return default


Rights.OPEN = Rights()


def _admits(topic: str, topic_filter: str) -> bool:
    return matches(topic_filter, topic)


def _covers(requested_filter: str, topic_filter: str) -> bool:
    return covers(topic_filter, requested_filter)


# -- placeholders ------------------------------------------------------------------------------------------------------


def _check_pattern(pattern: object) -> None:
    """Raise ``InvalidValueError`` if *pattern* is not a valid topic filter with names in place of its placeholders."""
    if not isinstance(pattern, str):
        raise InvalidValueError("topic filter", pattern, "a string")
    for braced in _BRACED.findall(pattern):
        if not _PLACEHOLDER.fullmatch(braced):
            raise InvalidValueError("topic filter", pattern, "{user} and {client} as the only words in braces")
    first = pattern.partition("/")[0]
    if first.startswith("$") and _PLACEHOLDER.search(first):
        raise InvalidValueError("topic filter", pattern, "no placeholder in a first level that begins with $")
    check_topic_filter(_PLACEHOLDER.sub("name", pattern))


def _widen(pattern: str) -> str:
    """Return a filter without placeholders that admits every topic that *pattern* admits for any client."""
    return "/".join("+" if _PLACEHOLDER.search(level) else level for level in pattern.split("/"))


def _fill(pattern: str, user: str | None, client_id: str) -> str | None:
    """Return *pattern* with the client's names in place of the placeholders, or None if a name must not be used."""
    if "{" not in pattern:
        return pattern
    names = {"user": user or "", "client": client_id}
    wanted = {found[1] for found in _PLACEHOLDER.finditer(pattern)}
    if any(not names[each] or _UNSAFE.search(names[each]) for each in wanted):
        return None
    # One pass: if the client is called {user}, its name is not replaced a second time.
    filled = _PLACEHOLDER.sub(lambda found: names[found[1]], pattern)
    return None if filled.startswith("$") and not pattern.startswith("$") else filled


# -- the file ----------------------------------------------------------------------------------------------------------


def _rights(source: str, tree: Mapping[str, object]) -> Rights:
    for key in tree:
        if key not in _KEYS:
            _refuse_key(source, key, key, _KEYS)
    default = tree.get("default", "allow")
    if not isinstance(default, str) or default not in _DEFAULTS:
        raise ConfigError(source, "default", default, '"allow" or "deny"')
    read = [_rule(source, where, each) for where, each in _tables(source, tree, "rule", _RULE_KEYS)]
    client_ids = [_client_rule(source, where, each) for where, each in _tables(source, tree, "client", _CLIENT_KEYS)]
    try:
        return Rights(read, allows_by_default=_DEFAULTS[default], client_ids=client_ids)
    except InvalidValueError as error:
        raise ConfigError(source, error.what, error.found, error.allowed) from None


def _tables(
    source: str, tree: Mapping[str, object], kind: str, keys: Sequence[str]
) -> list[tuple[str, dict[str, Any]]]:
    """Return the tables ``[[kind]]``, each with the words that name it in errors.

    Raise ``ConfigError`` for an unknown key, or a user, group or client that is not a string.
    """
    found = tree.get(kind, [])
    if not isinstance(found, list):
        raise ConfigError(source, kind, found, f"{kind}s that each begin with [[{kind}]]")
    if len(found) > MAX_RULES:
        raise ConfigError(source, kind, Phrase(f"{len(found)} {kind}s"), f"at most {MAX_RULES}")
    tables: list[tuple[str, dict[str, Any]]] = []
    for number, table in enumerate(found, start=1):
        where = f"{kind} {number}"
        if not isinstance(table, dict):
            raise ConfigError(source, where, table, f"a {kind} that begins with [[{kind}]]")
        for key in table:
            if key not in keys:
                _refuse_key(source, f"{where}, {key}", key, keys)
        for key in ("user", "group", "client"):
            if not isinstance(table.get(key, ""), str):
                raise ConfigError(source, f"{where}, {key}", table[key], "a string")
        tables.append((where, table))
    return tables


def _rule(source: str, where: str, tree: dict[str, Any]) -> Rule:
    if ("allow" in tree) == ("deny" in tree):
        found = Phrase("both" if "allow" in tree else "neither")
        advice = "give one of them" if "allow" in tree else "give allow or deny"
        sentence = f"{where} has {found} allow {'and' if 'allow' in tree else 'nor'} deny: {advice}"
        raise ConfigError(source, f"{where}, allow and deny", found, "one of them", sentence=sentence)
    verdict = "allow" if "allow" in tree else "deny"
    try:
        return Rule(
            topics=_strings(source, f"{where}, topics", tree.get("topics")),
            actions=_actions(source, f"{where}, {verdict}", tree[verdict]),
            is_allowing=verdict == "allow",
            user=tree.get("user"),
            group=tree.get("group"),
            client=tree.get("client"),
        )
    except InvalidValueError as error:
        raise refused_value(source, where, error) from None


def _client_rule(source: str, where: str, tree: dict[str, Any]) -> ClientRule:
    try:
        ids = _strings(source, f"{where}, ids", tree.get("ids"))
        return ClientRule(ids=ids, user=tree.get("user"), group=tree.get("group"))
    except InvalidValueError as error:
        raise refused_value(source, where, error) from None


def _strings(source: str, where: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ConfigError(source, where, value, "an array of strings")
    return tuple(value)


def _actions(source: str, where: str, value: object) -> frozenset[Action]:
    words = {action.value: action for action in Action}
    for each in (found := _strings(source, where, value)):
        if each not in words:
            raise ConfigError(source, where, each, ", ".join(f'"{word}"' for word in words))
    return frozenset(words[each] for each in found)


def _refuse_key(source: str, where: str, key: str, known: Sequence[str]) -> NoReturn:
    meant = nearest(key, known)
    advice = f"did you mean {meant}?" if meant else f"allowed are {', '.join(known)}"
    sentence = f"{where}: there is no {key}; {advice}" if where != key else f"there is no {key}; {advice}"
    raise ConfigError(source, where, "an unknown name", ", ".join(known), sentence=sentence)
