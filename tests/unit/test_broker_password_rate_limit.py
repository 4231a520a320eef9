"""PasswordRateLimit: who has to wait after wrong passwords, how long, and whom the broker remembers."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.broker.limits.password_rate_limit import PasswordRateLimit
from whimbrel.errors import InvalidValueError

SECOND = 1_000_000
MINUTE = 60 * SECOND
START = 1_700_000_000 * SECOND
HERE, THERE = "('192.0.2.1', 50000)", "('192.0.2.2', 50000)"


def _fail(patience: PasswordRateLimit, address: str, now: int, times: int = 1) -> None:
    for _ in range(times):
        assert patience.may_try(address, now)
        patience.count_failure(address, now)


def test_an_address_may_fail_as_often_as_in_a_minute_at_once() -> None:
    """People mistype; others are not concerned."""
    patience = PasswordRateLimit(3)
    _fail(patience, HERE, START, times=3)
    assert not patience.may_try(HERE, START)
    assert patience.may_try(THERE, START)


def test_one_failure_comes_back_each_share_of_a_minute() -> None:
    """Waiting helps exactly as much as the setting says, and not a microsecond earlier."""
    patience = PasswordRateLimit(3)
    _fail(patience, HERE, START, times=3)
    assert not patience.may_try(HERE, START + 20 * SECOND - 1)
    _fail(patience, HERE, START + 20 * SECOND)
    assert not patience.may_try(HERE, START + 40 * SECOND - 1)
    assert patience.may_try(HERE, START + 40 * SECOND)


def test_nobody_saves_up_more_than_a_minute() -> None:
    """A day of silence is no licence to guess."""
    patience = PasswordRateLimit(3)
    _fail(patience, HERE, START)
    _fail(patience, HERE, START + 1_440 * MINUTE, times=3)
    assert not patience.may_try(HERE, START + 1_440 * MINUTE)


def test_what_is_right_costs_nothing() -> None:
    """A device that reconnects all the time is not an attacker."""
    patience = PasswordRateLimit(1)
    assert all(patience.may_try(HERE, START) for _ in range(100))
    assert len(patience) == 0


def test_failures_that_were_let_in_together_are_all_paid_for() -> None:
    """Otherwise a thousand connections at once would have a thousand guesses a minute."""
    patience = PasswordRateLimit(2)
    assert all(patience.may_try(HERE, START) for _ in range(10))
    for _ in range(10):
        patience.count_failure(HERE, START)
    assert not patience.may_try(HERE, START + 270 * SECOND - 1)
    assert patience.may_try(HERE, START + 270 * SECOND)


def test_a_share_that_is_no_whole_microsecond_is_not_rounded() -> None:
    """A minute is 7 failures, not 6 and a little."""
    patience = PasswordRateLimit(7)
    _fail(patience, HERE, START, times=7)
    assert not patience.may_try(HERE, START + MINUTE // 7)
    assert patience.may_try(HERE, START + MINUTE // 7 + 1)
    _fail(patience, HERE, START + MINUTE, times=7)
    assert not patience.may_try(HERE, START + MINUTE)


def test_without_a_limit_everybody_may_and_nobody_is_remembered() -> None:
    """0 switches it off, and then it costs nothing."""
    patience = PasswordRateLimit(0)
    for _ in range(100):
        patience.count_failure(HERE, START)
    assert patience.may_try(HERE, START)
    assert len(patience) == 0


def test_a_clock_that_is_set_back_locks_nobody_out() -> None:
    """The wait is as long as it was, counted from where the clock is now."""
    patience = PasswordRateLimit(1)
    _fail(patience, HERE, START)
    back = START - 1_440 * MINUTE
    assert not patience.may_try(HERE, back)
    assert not patience.may_try(HERE, back + MINUTE - 1)
    assert patience.may_try(HERE, back + MINUTE)


@pytest.mark.parametrize(("per_minute", "most"), [(-1, 1), (2**31, 1), (1, 0), (1, -1)])
def test_a_limit_is_a_number_that_can_be_meant(per_minute: int, most: int) -> None:
    """A negative one would lock everybody out without saying so."""
    with pytest.raises(InvalidValueError, match="an integer from"):
        PasswordRateLimit(per_minute, most=most)


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("('192.0.2.1', 50000)", "('192.0.2.1', 50001)"),
        ("192.0.2.1:50000", "192.0.2.1:1"),
        ("192.0.2.1", "('192.0.2.1', 1)"),
        ("('2001:db8::1', 50000, 0, 0)", "('2001:db8::2', 1, 0, 0)"),
        ("[2001:db8::1]:50000", "[2001:db8:0:0:ffff:ffff:ffff:ffff]:1"),
        ("2001:db8::1", "[2001:DB8::2]"),
        ("2001:db8::1:50000", "2001:db8::1:50001"),
        ("('fe80::1%eth0', 50000, 0, 2)", "[fe80::2]:1"),
        ("('::ffff:192.0.2.1', 50000, 0, 0)", "192.0.2.1:1"),
        ("localhost:50000", "localhost:1"),
        (":50000", ":1"),
        ("", ""),
        ("None", "None"),
    ],
)
def test_ports_and_the_low_half_of_ipv6_make_no_difference(one: str, other: str) -> None:
    """An attacker has as many of them as there are."""
    patience = PasswordRateLimit(1)
    _fail(patience, one, START)
    assert not patience.may_try(other, START)
    patience.count_failure(other, START)
    assert len(patience) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("('192.0.2.1', 50000)", "('192.0.2.11', 50000)"),
        ("192.0.2.1:5", "192.0.2.15"),
        ("('2001:db8::1', 50000, 0, 0)", "('2001:db8:0:1::1', 50000, 0, 0)"),
        ("('::ffff:192.0.2.1', 50000, 0, 0)", "('::ffff:192.0.2.2', 50000, 0, 0)"),
        ("/run/a.sock", "/run/b.sock"),
        ("", "None"),
        ("[", "]"),
    ],
)
def test_others_are_not_concerned(one: str, other: str) -> None:
    """IPv4 in IPv6 above all: there the whole Internet is one /64."""
    patience = PasswordRateLimit(1)
    _fail(patience, one, START)
    assert patience.may_try(other, START)


@given(address=st.text(max_size=40) | st.text("0123456789abcdef.:[]()'\", %/", max_size=40))
def test_any_text_is_an_address(address: str) -> None:
    """Whatever a transport says of the other end, it is counted."""
    patience = PasswordRateLimit(1)
    _fail(patience, address, START)
    assert not patience.may_try(address, START)


# -- memory ------------------------------------------------------------------------------------------------------------


def test_those_who_have_everything_back_are_forgotten_first() -> None:
    """It makes no difference to them, even if they failed after one who still waits."""
    patience = PasswordRateLimit(2, most=2)
    _fail(patience, "a", START, times=2)
    _fail(patience, "b", START + SECOND)
    _fail(patience, "c", START + 31 * SECOND)
    assert len(patience) == 2
    assert patience.may_try("a", START + 31 * SECOND)
    patience.count_failure("a", START + 31 * SECOND)
    assert not patience.may_try("a", START + 31 * SECOND)


def test_where_all_have_to_wait_the_one_who_failed_longest_ago_is_forgotten() -> None:
    """Memory is bounded, whoever has how many addresses; a further failure makes an address recent again."""
    patience = PasswordRateLimit(1, most=2)
    _fail(patience, "a", START)
    _fail(patience, "b", START + 1)
    patience.count_failure("a", START + 2)
    _fail(patience, "c", START + 3)
    assert len(patience) == 2
    assert [patience.may_try(each, START + 3) for each in "abc"] == [False, True, False]


def test_one_who_is_remembered_takes_no_further_room() -> None:
    """Nobody else is forgotten for it."""
    patience = PasswordRateLimit(1, most=2)
    _fail(patience, "a", START)
    _fail(patience, "b", START)
    patience.count_failure("b", START)
    assert [patience.may_try(each, START) for each in "ab"] == [False, False]


# -- against a model ---------------------------------------------------------------------------------------------------


class _Buckets:
    """The same as it is told in the reference: buckets that fill up, all of them whenever time passes."""

    def __init__(self, per_minute: int, most: int) -> None:
        self.per_minute, self.most = per_minute, most
        self.tokens: dict[str, Fraction] = {}
        self.failed_at: dict[str, int] = {}
        self.turn = 0
        self.now: int | None = None

    def pass_time(self, now: int) -> None:
        gone = max(0, now - self.now) if self.now is not None else 0
        self.now = now
        for who in self.tokens:
            more = self.tokens[who] + Fraction(gone * self.per_minute, MINUTE)
            self.tokens[who] = min(Fraction(self.per_minute), more)

    def may_try(self, who: str) -> bool:
        return self.tokens.get(who, self.per_minute) >= 1

    def failed(self, who: str) -> None:
        self.turn += 1
        if who not in self.tokens and len(self.tokens) == self.most:
            gone = [each for each, tokens in self.tokens.items() if tokens == self.per_minute]
            for each in gone or [min(self.failed_at, key=self.failed_at.__getitem__)]:
                del self.tokens[each], self.failed_at[each]
        self.tokens[who] = self.tokens.get(who, Fraction(self.per_minute)) - 1
        self.failed_at[who] = self.turn


_STEPS = st.sampled_from([0, 1, 10 * SECOND, 15 * SECOND, 20 * SECOND, MINUTE, -MINUTE]) | st.integers(0, 3 * MINUTE)


@given(
    per_minute=st.integers(1, 7),
    most=st.integers(1, 4),
    asked=st.lists(st.tuples(_STEPS, st.sampled_from("abcdef"), st.booleans()), max_size=60),
)
def test_it_is_as_patient_as_the_model(per_minute: int, most: int, asked: list[tuple[int, str, bool]]) -> None:
    """Times when addresses are whole, kept for those who ask only, are the same as buckets."""
    patience, model, now = PasswordRateLimit(per_minute, most=most), _Buckets(per_minute, most), START
    for step, who, has_failed in asked:
        now += step
        model.pass_time(now)
        assert patience.may_try(who, now) is model.may_try(who)
        if has_failed:
            patience.count_failure(who, now)
            model.failed(who)
        assert len(patience) == len(model.tokens) <= most
