"""Policies: any text, any arrival; the compiled form is the interpreter's twin."""

from __future__ import annotations

import math
from pathlib import Path

import cbor2
from hypothesis import assume, example, given
from hypothesis import strategies as st
from policy_interpreter import interpret
from policy_texts import again, arrivals, policy_texts

from whimbrel.errors import PolicyError
from whimbrel.language.policies import Policy, PolicyCode, PolicyLimits
from whimbrel.language.policies.values import Arrival, Run

EXAMPLES = Path(__file__).parents[2] / "examples" / "policies"
LIMITS = PolicyLimits(steps=10**6, bytes=10**9, pixels=10**9)
ICU = {name: Policy((EXAMPLES / f"{name}.policy").read_text()) for name in ("icu_printed", "icu")}
_WORDS = st.sampled_from(
    "m v device state . , ; = == != < > + - * / % ! && || ^^ and or not in ( ) { } [ ] :- if else endif return "
    "function NULL true 1 2L 0x1F 08 1.5 9999999999 25. 'x' \"y\" 'un /* */ // getProperty setProperty getTime "
    "createMessage getData setData compress project summarise isResponsible getPulse begins-with( regex( arrived( "
    "Message State s # @ é \\ \n".split(" ")
)
_NEARLY = st.lists(_WORDS, max_size=24).map(" ".join) | st.lists(_WORDS, max_size=24).map("".join)


def _policy_or_error(text: str) -> Policy | PolicyError:
    try:
        return Policy(text, limits=LIMITS)
    except PolicyError as error:
        return error


@given(text=st.text() | _NEARLY | policy_texts())
@example("\ud800;")
@example("return m")
@example("x = " + "9" * 5000 + ";")
@example("if (m.a) " * 200)
@example("return " + "(" * 500)
@example("return m" + ".a" * 3000 + ";")
@example("x = 1" + " + 1" * 3000 + ";")
@example(
    "".join(f"function f{n}(a) {{ return f{n + 1}(a); }}\n" for n in range(400)) + "function f400(a) { return a; }"
)
def test_any_text_is_a_policy_or_an_error_with_a_place_inside_it(text: str) -> None:
    """Whatever a stranger sends is answered, precisely, and never with a traceback."""
    outcome = _policy_or_error(text)
    if isinstance(outcome, PolicyError):
        assert outcome.code in set(PolicyCode)
        assert 0 <= outcome.start <= outcome.end <= len(text)
        assert "^" in outcome.pointed().splitlines()[-1]


def _same(left: object, right: object) -> bool:
    return repr(left) == repr(right)  # NaN is NaN here, and 1 is not True


@given(text=policy_texts(), run=arrivals())
def test_an_accepted_policy_ends_within_its_bound_and_as_its_twin_does(text: str, run: Run) -> None:
    """Nothing raises, whatever the types; both forms agree in message, variables and steps."""
    policy = _policy_or_error(text)
    assume(isinstance(policy, Policy))
    assert isinstance(policy, Policy)
    twin = again(run)
    sent, plain = policy.run(run), interpret(policy.program, twin)
    assert _same(sent, plain)
    assert _same(run.changed, twin.changed)
    assert _same(run.read, twin.read)
    assert run.steps == twin.steps <= policy.bound.steps


@given(text=policy_texts(), run=arrivals())
def test_a_run_changes_nothing_but_what_it_returns(text: str, run: Run) -> None:
    """State is a fold over decisions: a run that wrote anywhere else could not be replayed."""
    policy = _policy_or_error(text)
    assume(isinstance(policy, Policy))
    assert isinstance(policy, Policy)
    before = repr((run.arrival, run.automatic, run.manual))
    policy.run(run)
    assert repr((run.arrival, run.automatic, run.manual)) == before
    assert set(run.changed) <= policy.writes | {f"summary:{site}:s" for site in range(99)}


_FRACTIONS = st.none() | st.sampled_from([0.0, 0.2499, 0.25, 0.2501, 0.5, 0.75, 1.0]) | st.floats(0, 1)
_TIMES = st.sampled_from([None, 0, 700, 1_000 - 301, 1_000 - 300, 1_000 - 299, 1_000])


@given(
    pulse=st.sampled_from([49, 50, 51]) | st.integers(0, 200) | st.floats(0, 200),
    patient=st.sampled_from(["p1", "p2", 7, 8]),
    battery=_FRACTIONS,
    network=_FRACTIONS,
    stamp=_TIMES,
)
def test_the_printed_and_the_clean_form_agree(
    pulse: float, patient: str | int, battery: float | None, network: float | None, stamp: int | None
) -> None:
    """Figure 4 as printed, and the form that we teach: one meaning."""
    arrival = Arrival(attributes={"pulse": pulse, "patientID": patient}, subject="icu/1", body_bytes=9)
    found = {"Battery": battery, "NetworkConnection": network, "responsible.p1": 1, "responsible.7": 1}
    automatic = {name: value for name, value in found.items() if value is not None}
    manual = {} if stamp is None else {"Timestamp": stamp}
    runs = []
    for policy in ICU.values():
        run = Run(arrival, automatic, manual, 1_000_000_000)
        runs.append((policy.run(run), run.changed))
    assert runs[0] == runs[1]


@given(found=st.lists(st.floats() | st.integers(-99, 99), min_size=2, max_size=9))
def test_a_summary_says_what_was_seen(found: list[float]) -> None:
    """Whatever was withheld meanwhile counts too."""
    policy = Policy("return summarise(m, 60, 'a');")
    manual: dict[str, object] = {}
    for number, value in enumerate(found):
        now = 0 if number < len(found) - 1 else 60_000_000
        run = Run(Arrival(attributes={"a": value}, subject="s"), {}, manual, now)  # type: ignore[arg-type]
        sent = policy.run(run)
        manual = {name: each for name, each in {**manual, **run.changed}.items() if each is not None}
        assert (sent is None) == (number < len(found) - 1)
    assert sent is not None
    assert sent.changes["count"] == sent.changes["a.count"] == len(found)
    numbers = [value for value in found if not math.isnan(value)]
    assert sent.changes.get("a.least") == (min(numbers) if numbers else None)
    assert sent.changes.get("a.greatest") == (max(numbers) if numbers else None)
    assert manual == {}


@given(
    value=st.binary(max_size=40)
    | st.recursive(
        st.none() | st.integers() | st.floats() | st.text(max_size=2),
        lambda inner: st.lists(inner, max_size=6),
        max_leaves=9,
    ).map(cbor2.dumps)
)
def test_a_summary_that_cannot_be_read_starts_anew(value: bytes) -> None:
    """The log may have been written by anybody."""
    run = Run(Arrival(attributes={"a": 1}, subject="s"), {}, {"summary:1:s": value}, 10**15)
    Policy("return summarise(m, 60, 'a');").run(run)
    assert "summary:1:s" in run.changed
