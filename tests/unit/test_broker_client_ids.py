"""Which client identifiers a user may connect with."""

from __future__ import annotations

import fnmatch
import random
import re

import pytest

from whimbrel.broker.access import client_ids as module
from whimbrel.broker.access.client_ids import ClientIds, ClientRule
from whimbrel.errors import InvalidValueError


def _ids(*patterns: str, user: str | None = None, group: str | None = None) -> ClientIds:
    return ClientIds([ClientRule(ids=patterns, user=user, group=group)])


def test_without_a_rule_every_identifier_is_free() -> None:
    """A broker whose operator wrote nothing of it serves every client."""
    assert ClientIds().may_use(None, (), "anything")


def test_with_a_rule_only_what_is_granted_may_be_used() -> None:
    """A list of what is allowed cannot forget anything that should be refused."""
    ids = ClientIds([ClientRule(ids=("ann-*",), user="ann"), ClientRule(ids=("gateway-*",), group="gateways")])
    assert ids.may_use("ann", (), "ann-phone")
    assert not ids.may_use("bob", (), "ann-phone")
    assert not ids.may_use("ann", (), "gateway-1")
    assert ids.may_use("bob", ("gateways",), "gateway-1")
    assert not ids.may_use("ann", (), "whatever")


def test_the_users_own_name_is_filled_in() -> None:
    """One rule gives every user identifiers of their own."""
    ids = _ids("{user}", "{user}:*")
    for granted in ("ann", "ann:", "ann:phone"):
        assert ids.may_use("ann", (), granted)
        assert not ids.may_use("bob", (), granted)
        assert not ids.may_use(None, (), granted)


def test_a_name_is_no_pattern() -> None:
    """Whoever is called * is granted no more than others."""
    ids = _ids("{user}-phone")
    assert ids.may_use("*", (), "*-phone")
    assert not ids.may_use("*", (), "ann-phone")
    assert not ids.may_use("{user}", (), "ann-phone")


@pytest.mark.parametrize(("user", "is_granted"), [(None, True), ("ann", False)])
def test_the_empty_name_is_a_client_that_nobody_verified(user: str | None, *, is_granted: bool) -> None:
    """Sensors without a password may have their corner too."""
    assert _ids("sensor-*", user="").may_use(user, (), "sensor-1") is is_granted


def test_stars_stand_for_any_text() -> None:
    """As in file names, which everybody knows."""
    rng = random.Random(3)
    for _ in range(3_000):
        pattern = "".join(rng.choices("ab*", k=rng.randrange(1, 7)))
        client_id = "".join(rng.choices("ab", k=rng.randrange(7)))
        wanted = re.fullmatch(fnmatch.translate(pattern), client_id) is not None
        assert _ids(pattern).may_use("ann", (), client_id) is wanted, (pattern, client_id)


def test_the_number_of_rules_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file by mistake must not make every CONNECT slow."""
    monkeypatch.setattr(module, "MAX_CLIENT_RULES", 2)
    monkeypatch.setattr(module, "MAX_CLIENT_PATTERNS", 3)
    with pytest.raises(InvalidValueError, match="number of client rules"):
        ClientIds([ClientRule(ids=("a",))] * 3)
    with pytest.raises(InvalidValueError, match="client identifiers of all rules"):
        ClientIds([ClientRule(ids=("a", "b"))] * 2)
