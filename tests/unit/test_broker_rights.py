"""Rights: which topics a client may use, and that no wildcard gets around it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from whimbrel.broker.access import topic_rights as module
from whimbrel.broker.access.topic_rights import Action, Rights, Rule, covers, overlaps
from whimbrel.broker.settings.fields import ConfigError
from whimbrel.errors import InvalidValueError
from whimbrel.match.topics import is_topic_filter, matches

BOTH = frozenset(Action)
# Every filter of up to three levels; topics are one level longer and have a word ("c", "$c") that no filter has.
FILTERS = sorted(
    {
        "/".join(levels)
        for size in (1, 2, 3)
        for levels in product(("a", "", "$b", "+", "#"), repeat=size)
        if is_topic_filter("/".join(levels))
    }
)
TOPICS = ["/".join(levels) for size in (1, 2, 3, 4) for levels in product(("a", "", "$b", "c", "$c"), repeat=size)]
TOPICS.remove("")  # a topic has a character at least
ADMITTED = {each: frozenset(topic for topic in TOPICS if matches(each, topic)) for each in FILTERS}


def _read(folder: Path, document: str) -> Rights:
    path = folder / "rights.toml"
    path.write_text(document, encoding="utf-8")
    return Rights.read(path)


def _refusal(folder: Path, document: str) -> str:
    with pytest.raises(ConfigError) as raised:
        _read(folder, document)
    return str(raised.value).removeprefix(f"{folder}/rights.toml: ")


def _rule(topics: str, *, is_allowing: bool = True, actions: frozenset[Action] = BOTH, user: str | None = None) -> Rule:
    return Rule(topics=tuple(topics.split()), actions=actions, is_allowing=is_allowing, user=user)


# -- covers ------------------------------------------------------------------------------------------------------------


def test_covers_is_what_the_topics_say() -> None:
    """Brute force over all small filters: one covers another exactly if it admits all that the other admits."""
    wrong = [
        (rule, asked)
        for rule, asked in product(FILTERS, FILTERS)
        if covers(rule, asked) != (ADMITTED[asked] <= ADMITTED[rule])
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("rule", "asked"),
    [
        ("#", "+/+"),
        ("a/#", "a"),
        ("a/#", "a/#"),
        ("+/#", "#"),
        ("/+/#", "/#"),
        ("a/+/c", "a/b/c"),
        ("$SYS/#", "$SYS/+"),
        ("#", "/"),
    ],
)
def test_a_wider_filter_covers_a_narrower(rule: str, asked: str) -> None:
    """An allowance for a tree is one for its branches."""
    assert covers(rule, asked)


@pytest.mark.parametrize(
    ("rule", "asked"),
    [("a/+", "a/#"), ("a/+/#", "a/#"), ("a/b", "a/+"), ("#", "$SYS/#"), ("+/x", "$SYS/x"), ("$SYS/#", "#"), ("a", "b")],
)
def test_a_filter_that_misses_a_topic_does_not_cover(rule: str, asked: str) -> None:
    """An allowance must not be stretched, least of all to what begins with a dollar."""
    assert not covers(rule, asked)


# -- decisions ---------------------------------------------------------------------------------------------------------


def test_open_rights_allow_everything() -> None:
    """Without a rights file a broker is plain MQTT."""
    assert Rights.OPEN.may_publish(None, (), "c", "a")
    assert Rights.OPEN.may_subscribe(None, (), "c", "#")
    assert Rights.OPEN.may_receive(None, (), "c", "$SYS/a")
    assert Rights.OPEN.is_open
    assert not Rights(allows_by_default=False).is_open


def test_the_first_rule_that_fits_decides() -> None:
    """Exceptions are written above what they are exceptions from."""
    rights = Rights([_rule("a/b"), _rule("a/#", is_allowing=False)])
    assert rights.may_publish(None, (), "c", "a/b")
    assert not rights.may_publish(None, (), "c", "a/c")
    assert rights.may_publish(None, (), "c", "other")


def test_actions_are_decided_apart(tmp_path: Path) -> None:
    """A sensor may speak and not listen."""
    rights = _read(tmp_path, 'default = "deny"\n[[rule]]\ntopics = ["a"]\nallow = ["publish"]')
    assert rights.may_publish(None, (), "c", "a")
    assert not rights.may_subscribe(None, (), "c", "a")
    assert not rights.may_receive(None, (), "c", "a")


def test_all_selectors_that_are_given_must_fit(tmp_path: Path) -> None:
    """Each selector narrows a rule; none widens it."""
    document = """
    default = "deny"
    [[rule]]
    user = "ann"
    group = "ops"
    client = "phone"
    topics = ["#"]
    allow = ["publish"]
    """
    rights = _read(tmp_path, document)
    assert rights.may_publish("ann", {"ops", "day"}, "phone", "a")
    assert not rights.may_publish("bob", {"ops"}, "phone", "a")
    assert not rights.may_publish("ann", {"day"}, "phone", "a")
    assert not rights.may_publish("ann", {"ops"}, "tablet", "a")
    assert not rights.may_publish(None, {"ops"}, "phone", "a")


@pytest.mark.parametrize(
    ("selector", "fitting"), [(None, {None, "ann"}), ("*", {None, "ann"}), ("", {None}), ("ann", {"ann"})]
)
def test_a_star_is_everybody_and_the_empty_name_whoever_gave_none(
    selector: str | None, fitting: set[str | None]
) -> None:
    """A denial for everybody must not pass over those without a name."""
    rights = Rights([_rule("#", user=selector)], allows_by_default=False)
    assert {user for user in (None, "ann") if rights.may_publish(user, (), "c", "a")} == fitting


def test_a_denied_topic_cannot_be_subscribed_to(tmp_path: Path) -> None:
    """The test suites of MQTT ask for a topic that nobody may subscribe to."""
    rights = _read(tmp_path, '[[rule]]\ntopics = ["test/nosubscribe"]\ndeny = ["subscribe"]')
    assert not rights.may_subscribe(None, (), "c", "test/nosubscribe")
    assert rights.may_subscribe(None, (), "c", "test/other")
    assert rights.may_publish(None, (), "c", "test/nosubscribe")


def test_a_denied_topic_does_not_arrive_through_a_wildcard() -> None:
    """Asking for more must not be the way to what was refused."""
    rights = Rights([_rule("secret/#", is_allowing=False)])
    assert not rights.may_subscribe(None, (), "c", "secret/+")
    assert rights.may_subscribe(None, (), "c", "#")
    assert not rights.may_receive(None, (), "c", "secret/plan")
    assert rights.may_receive(None, (), "c", "public")


def test_an_allowance_does_not_reach_beyond_its_filter() -> None:
    """Where the default is to deny, a subscription must lie within what is allowed."""
    rights = Rights([_rule("a/+")], allows_by_default=False)
    assert rights.may_subscribe(None, (), "c", "a/+")
    assert rights.may_subscribe(None, (), "c", "a/b")
    assert not any(rights.may_subscribe(None, (), "c", each) for each in ("a/#", "#", "+/b", "a", "a/b/c"))


def _some_rights(rng: random.Random) -> Iterator[Rights]:
    for _ in range(60):
        actions = [frozenset({Action.SUBSCRIBE}), BOTH, frozenset({Action.PUBLISH})]
        rules = [
            Rule(topics=tuple(rng.sample(FILTERS, 2)), actions=rng.choice(actions), is_allowing=rng.random() < 0.5)
            for _ in range(rng.randrange(5))
        ]
        yield Rights(rules, allows_by_default=rng.random() < 0.5)


def test_decisions_are_those_of_asking_rule_after_rule() -> None:
    """The index of topics is for speed and decides nothing."""
    rng = random.Random(4)
    for rights in _some_rights(rng):
        entries = [(rule, each) for rule, each in rights._entries if Action.SUBSCRIBE in rule.actions]
        for asked in rng.sample(FILTERS, 20):
            first = next((rule.is_allowing for rule, each in entries if covers(each, asked)), rights._allows_by_default)
            assert rights.may_subscribe(None, (), "c", asked) == first
        for topic in rng.sample(TOPICS, 20):
            first = next(
                (rule.is_allowing for rule, each in entries if matches(each, topic)), rights._allows_by_default
            )
            assert rights.may_receive(None, (), "c", topic) == first


def test_a_share_is_allowed_only_if_all_of_it_may_be_received() -> None:
    """What a member of a share may not have would be lost for the whole share."""
    rng = random.Random(5)
    for rights in _some_rights(rng):
        for asked in rng.sample(FILTERS, 10):
            if rights.may_share(None, (), "c", asked):
                assert rights.may_subscribe(None, (), "c", asked)
                assert all(rights.may_receive(None, (), "c", topic) for topic in ADMITTED[asked])


def test_a_share_passes_no_narrower_denial() -> None:
    """Though a subscription of the same filter that is not shared does."""
    rights = Rights([_rule("secret/#", is_allowing=False)])
    assert rights.may_subscribe(None, (), "c", "#")
    assert not rights.may_share(None, (), "c", "#")
    assert rights.may_share(None, (), "c", "open/#")
    allowing = Rights([_rule("a/#"), _rule("#", is_allowing=False)], allows_by_default=False)
    assert allowing.may_share(None, (), "c", "a/+")
    assert not allowing.may_share(None, (), "c", "+/b")


def test_overlaps_is_what_the_topics_say() -> None:
    """Two filters overlap if a topic is admitted by both; the empty one, which both of + and /# would, is none."""
    for one, other in product(FILTERS, repeat=2):
        is_meant = {one, other} == {"+", "/#"} or bool(ADMITTED[one] & ADMITTED[other])
        assert overlaps(one, other) == is_meant, (one, other)


def test_to_operate_is_never_a_default(tmp_path: Path) -> None:
    """Requests that concern the sessions of others need a rule that says so."""
    release = "$whimbrel/session/release"
    assert not Rights.OPEN.may_operate("ann", (), "c", release)
    rules = '[[rule]]\ntopics = ["$whimbrel/#"]\nallow = ["publish", "subscribe"]\n'
    assert not _read(tmp_path, rules).may_operate("ann", (), "c", release)
    operators = _read(tmp_path, f'[[rule]]\ngroup = "ops"\ntopics = ["{release}"]\nallow = ["operate"]')
    assert operators.may_operate("ann", ("ops",), "c", release)
    assert not operators.may_operate("ann", (), "c", release)


# -- placeholders ------------------------------------------------------------------------------------------------------


def test_placeholders_stand_for_the_clients_own_names() -> None:
    """One rule gives everybody a corner."""
    rights = Rights([_rule("home/{user}/# dev-{client}/{user}")], allows_by_default=False)
    assert rights.may_publish("ann", (), "c1", "home/ann/lamp")
    assert rights.may_subscribe("ann", (), "c1", "home/ann/#")
    assert rights.may_publish("ann", (), "c1", "dev-c1/ann")
    assert not rights.may_publish("ann", (), "c1", "home/bob/lamp")
    assert not rights.may_subscribe("ann", (), "c1", "home/+/#")
    assert not rights.may_publish("ann", (), "c2", "dev-c1/ann")


@pytest.mark.parametrize("name", ["+", "#", "a/b", "a+", "", "/"])
def test_a_name_with_a_wildcard_in_it_opens_nothing(name: str) -> None:
    """Client identifiers are whatever a client says; one that says # must not be given everything."""
    rights = Rights([_rule("home/{client}/x {user}")], allows_by_default=False)
    for topic in ("home/a/x", f"home/{name}/x", "a", name):
        assert not rights.may_publish(name, (), name, topic)
        assert not rights.may_subscribe(name, (), name, topic)
    assert not rights.may_subscribe(name, (), name, "home/+/x")


def test_a_name_with_a_dollar_opens_no_topic_of_the_broker() -> None:
    """A client called $SYS does not own $SYS."""
    rights = Rights([_rule("{client}/# $x/{client}")], allows_by_default=False)
    assert not rights.may_publish(None, (), "$SYS", "$SYS/a")
    assert not rights.may_subscribe(None, (), "$SYS", "$SYS/#")
    assert rights.may_publish(None, (), "$SYS", "$x/$SYS")


def test_a_name_that_looks_like_a_placeholder_is_only_a_name() -> None:
    """Filling in is done once."""
    rights = Rights([_rule("{client}/x")], allows_by_default=False)
    assert rights.may_publish("ann", (), "{user}", "{user}/x")
    assert not rights.may_publish("ann", (), "{user}", "ann/x")


def test_whoever_has_no_user_name_fits_no_placeholder_for_it() -> None:
    """Nobody's corner is not everybody's."""
    rights = Rights([_rule("home/{user}")], allows_by_default=False)
    assert not any(rights.may_publish(None, (), "c", topic) for topic in ("home/", "home/None", "home/{user}"))


# -- the file ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ('default = "maybe"', 'default: found \'maybe\', allowed is "allow" or "deny"'),
        (
            'defualt = "deny"',
            "there is no defualt; did you mean default?",
        ),
        ("rule = 3", "rule: found 3, allowed is rules that each begin with [[rule]]"),
        ("rule = [3]", "rule 1: found 3"),
        ('[[rule]]\ntopics = ["a"]', "rule 1 has neither allow nor deny: give allow or deny"),
        (
            '[[rule]]\ntopics = ["a"]\nallow = ["publish"]\ndeny = []',
            "rule 1 has both allow and deny: give one of them",
        ),
        ('[[rule]]\nallow = ["publish"]', "rule 1, topics: found nothing, allowed is an array of strings"),
        ('[[rule]]\ntopics = []\nallow = ["publish"]', "rule 1, topics: found [], allowed is at least one"),
        ('[[rule]]\ntopics = ["a"]\ndeny = []', "rule 1, deny: found [], allowed is at least one action"),
        ('[[rule]]\ntopics = ["a"]\nallow = ["read"]', "rule 1, allow: found 'read', allowed is \"publish\""),
        ('[[rule]]\ntopic = ["a"]\nallow = ["publish"]', "rule 1, topic: there is no topic; did you mean topics?"),
        ('[[rule]]\ntopics = ["a/#/b"]\nallow = ["publish"]', "rule 1: 'a/#/b' is no topic filter: # may only"),
        ('[[rule]]\ntopics = ["+{user}"]\nallow = ["publish"]', "rule 1: '+name' is no topic filter: + and #"),
        ('[[rule]]\ntopics = ["a/{usr}"]\nallow = ["publish"]', "rule 1, topic filter: found 'a/{usr}'"),
        ('[[rule]]\ntopics = ["$a{user}"]\nallow = ["publish"]', "rule 1, topic filter: found '$a{user}'"),
        ('[[rule]]\nuser = 3\ntopics = ["a"]\nallow = ["publish"]', "rule 1, user: found 3, allowed is a string"),
        ('[[rule]]\nuser = "a:b"\ntopics = ["a"]\nallow = ["publish"]', "rule 1, user name: found 'a:b'"),
        ('[[rule]]\nclient = ""\ntopics = ["a"]\nallow = ["publish"]', "rule 1, client: found ''"),
        ("client = 3", "client: found 3, allowed is clients that each begin with [[client]]"),
        ('[[client]]\nuser = "ann"', "client 1, ids: found nothing, allowed is an array of strings"),
        ("[[client]]\nids = []", "client 1, ids: found [], allowed is at least one pattern"),
        ('[[client]]\nids = [""]', "client 1, ids: found ''"),
        ('[[client]]\nids = ["{client}"]', "client 1, ids: found '{client}', allowed is text with {user}"),
        ('[[client]]\nids = ["a"]\nuser = "a:b"', "client 1, user name: found 'a:b'"),
        ('[[client]]\nids = ["a"]\nclient = "b"', "client 1, client: there is no client; allowed are user, group, ids"),
        (
            '[[rule]]\ntopics = ["a"]\nallow = ["publish"]\n[[rule]]',
            "rule 2 has neither allow nor deny: give allow or deny",
        ),
    ],
)
def test_a_bad_rule_is_named(tmp_path: Path, document: str, message: str) -> None:
    """A rule that silently fits nothing is a door left open or shut."""
    assert _refusal(tmp_path, document).startswith(message)


def test_the_number_of_rules_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file by mistake must not take the memory of the machine."""
    monkeypatch.setattr(module, "MAX_RULES", 2)
    monkeypatch.setattr(module, "MAX_FILTERS", 3)
    rule = '[[rule]]\ntopics = ["a", "b"]\nallow = ["publish"]\n'
    assert _refusal(tmp_path, 3 * rule).startswith("rule: found 3 rules, allowed is at most 2")
    assert _refusal(tmp_path, 2 * rule).startswith("topic filters of all rules: found 4, allowed is at most 3")
    with pytest.raises(InvalidValueError, match="number of rules"):
        Rights([_rule("a")] * 3)


def test_the_example_in_the_manual_reads(tmp_path: Path) -> None:
    """The docstring of the module is where people copy from."""
    assert module.__doc__ is not None
    block = module.__doc__.partition("\n\n")[2].partition("Rule:")[0]
    rights = _read(tmp_path, block)
    assert rights.may_subscribe("ann", (), "c", "home/ann/#")
    assert not rights.may_publish("bob", (), "c", "home/bob/lamp")
