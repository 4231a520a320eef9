"""Remembered verdicts: bounded, and forgotten when rights change."""

from __future__ import annotations

from pathlib import Path

from broker_rig import Rig

from whimbrel.broker.access.authorizer import Authorizer, Verdicts
from whimbrel.broker.access.topic_rights import Action, Rights, Rule

BOTH = frozenset({Action.PUBLISH, Action.SUBSCRIBE})


def test_what_is_used_often_stays() -> None:
    """A flood of questions that are asked once must not push out what every delivery asks."""
    verdicts = Verdicts(10)
    verdicts.put(("ann", "", "often"), False)
    for number in range(100):
        verdicts.put(("ann", "", str(number)), True)
        assert verdicts.get(("ann", "", "often")) is False
        assert len(verdicts) <= 20
    assert verdicts.get(("ann", "", "0")) is None


def test_what_is_too_long_is_not_remembered() -> None:
    """A client chooses its topics: memory is bounded in bytes too."""
    verdicts = Verdicts()
    assert verdicts.put(("ann", "", "x" * 1_000), True)
    assert len(verdicts) == 0


def test_replaced_rights_decide_at_once(tmp_path: Path) -> None:
    """What was remembered of rights that are gone must not decide."""
    authorizer = Authorizer(Rights([Rule(topics=("a",), actions=BOTH, is_allowing=True)], allows_by_default=False))
    rig = Rig(tmp_path, authorizer=authorizer)
    link = rig.client("c").link
    for _ in range(2):
        assert authorizer.may_receive(link, "c", "a")
        assert authorizer.may_publish(link, "c", "a")
        assert not authorizer.may_receive(link, "c", "b")
    authorizer.replace(Rights([Rule(topics=("b",), actions=BOTH, is_allowing=True)], allows_by_default=False))
    assert not authorizer.may_receive(link, "c", "a")
    assert not authorizer.may_publish(link, "c", "a")
    assert authorizer.may_receive(link, "c", "b")


def test_clients_of_one_user_are_told_apart_where_a_rule_does(tmp_path: Path) -> None:
    """The client identifier is part of the question only where an answer depends on it, and then always."""
    authorizer = Authorizer(
        Rights([Rule(topics=("home/{client}",), actions=BOTH, is_allowing=True)], allows_by_default=False)
    )
    rig = Rig(tmp_path, authorizer=authorizer)
    one, other = rig.client("one").link, rig.client("other").link
    assert authorizer.may_receive(one, "one", "home/one")
    assert not authorizer.may_receive(other, "other", "home/one")
    assert authorizer.may_receive(other, "other", "home/other")
