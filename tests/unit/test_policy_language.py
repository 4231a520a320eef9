"""The policy language: what is read, what is refused and where, what it costs, and what each operation does."""

from __future__ import annotations

from pathlib import Path

import pytest

from whimbrel.errors import PolicyError
from whimbrel.language.policies import Policy, PolicyCode, PolicyLimits
from whimbrel.language.policies.limits import PolicyCost
from whimbrel.language.policies.values import Arrival, Level, Message, Run, level_of
from whimbrel.model.attributes import Int64, Scalar

EXAMPLES = Path(__file__).parents[2] / "examples" / "policies"


def sent(
    text: str,
    attributes: dict[str, Scalar] | None = None,
    *,
    device: dict[str, Scalar] | None = None,
    state: dict[str, Scalar] | None = None,
    now: int = 0,
) -> tuple[Message | None, Run]:
    """Return what the policy *text* makes of an arrival, and the run."""
    run = Run(Arrival(attributes=attributes or {}, subject="s", body_bytes=8), device or {}, state or {}, now)
    return Policy(text).run(run), run


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.policy")))
def test_every_example_is_a_policy(name: str) -> None:
    """What we teach must be accepted as it stands."""
    assert Policy((EXAMPLES / name).read_text()).bound.steps > 0


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("return m", PolicyCode.PARSE, (1, 9)),
        ("x = ;", PolicyCode.PARSE, (1, 5)),
        ("x = 1;\n  y == 2;", PolicyCode.PARSE, (2, 3)),
        ("if (m.a = 1) { }", PolicyCode.PARSE, (1, 9)),
        ("if (m.a) {", PolicyCode.PARSE, (1, 10)),
        ("if (m.a) return m;", PolicyCode.PARSE, (1, 1)),
        ("x = m.a < m.b < m.c;", PolicyCode.PARSE, (1, 15)),
        ("arrived(Message m, Sate s) :- return m;", PolicyCode.PARSE, (1, 20)),
        ("x = 1 @ 2;", PolicyCode.TOKEN, (1, 7)),
        ("x = 08;", PolicyCode.TOKEN, (1, 5)),
        ("x = 'a;", PolicyCode.UNTERMINATED, (1, 5)),
        ("return m; /* so", PolicyCode.UNTERMINATED, (1, 11)),
        ("x = sqrt(2);", PolicyCode.FUNCTION, (1, 5)),
        ("x = m.open();", PolicyCode.FUNCTION, (1, 5)),
        ("x = 2147483648;", PolicyCode.OVERFLOW, (1, 5)),
        ("return 5;", PolicyCode.TYPE, (1, 8)),
        ("x = 'a' + 1;", PolicyCode.TYPE, (1, 5)),
        ("x = createMessage() < 1;", PolicyCode.TYPE, (1, 5)),
        ("if (m.a < NULL) { }", PolicyCode.TYPE, (1, 9)),
        ("x = setProperty('a', 1);", PolicyCode.TYPE, (1, 5)),
        ("x = m.a in m.b;", PolicyCode.TYPE, (1, 12)),
        ("return compress(m, 1, 2);", PolicyCode.ARGUMENTS, (1, 8)),
        ("function f(a) { return a; } return f(m, m);", PolicyCode.ARGUMENTS, (1, 36)),
        ("if (isMine()) { }", PolicyCode.ARGUMENTS, (1, 5)),
        ("if (regex(m.a, '(')) { }", PolicyCode.PATTERN, (1, 5)),
        ("return x;", PolicyCode.NAME, (1, 8)),
        ("n.a = 1;", PolicyCode.NAME, (1, 1)),
        ("device = 1;", PolicyCode.NAME, (1, 1)),
        ("function getTime() { return 1; }", PolicyCode.NAME, (1, 10)),
        ("setProperty('summary:1:s', 1);", PolicyCode.NAME, (1, 1)),
        ("device.Battery = 1;", PolicyCode.READ_ONLY, (1, 1)),
        ("setProperty('Battery', 1);", PolicyCode.READ_ONLY, (1, 1)),
        ("removeProperty('DisplaySize');", PolicyCode.READ_ONLY, (1, 1)),
        ("function f(a) { return f(a); } return f(m);", PolicyCode.RECURSION, (1, 1)),
        ("function f(a) { return g(a); } function g(a) { return f(a); }", PolicyCode.RECURSION, (1, 1)),
        ("x = " + "(" * 200 + "1", PolicyCode.NESTING, None),
        ("x = 1" + " + 1" * 100 + ";", PolicyCode.NESTING, None),
        ("return m; // " + "x" * 20_000, PolicyCode.LENGTH, None),
        ("x = compress(m, 1, 1, 1);" * 5, PolicyCode.COST, (1, 1)),
        ("x = fold-case(m.a);" * 5, PolicyCode.COST, (1, 1)),
        (3 * ("x = contains(m.a, '" + "a" * 128 + "');"), PolicyCode.COST, (1, 1)),
        ("".join(f"m.a{n} = 1;" for n in range(129)), PolicyCode.COST, None),
        ("x = regex(m.a, 'a{900}');" * 6, PolicyCode.PATTERN, None),
    ],
)
def test_what_is_no_policy_is_refused_with_code_and_place(
    text: str, code: PolicyCode, place: tuple[int, int] | None
) -> None:
    """The code is stable, the place is the first thing that does not fit."""
    with pytest.raises(PolicyError) as refused:
        Policy(text)
    assert refused.value.code == code
    assert place in {None, (refused.value.line, refused.value.column)}


def test_functions_that_call_each_other_twice_are_refused_before_they_run() -> None:
    """Thirty of them would make a thousand million steps of a short text."""
    chain = "".join(f"function f{n}(a) {{ x = f{n - 1}(a); return f{n - 1}(x); }}\n" for n in range(1, 31))
    with pytest.raises(PolicyError, match=r"it can cost [0-9]{10,} steps; at most 5000 are allowed") as refused:
        Policy(f"function f0(a) {{ return a; }}\n{chain}return f30(m);")
    assert refused.value.code == PolicyCode.COST


def test_the_bound_is_that_of_the_costlier_branch() -> None:
    """A run cannot take both."""
    limits = PolicyLimits(body_bytes=1_000, image_pixels=500)
    both = "if (m.a > 1) { return compress(m, 1, 1, 1); } else { return project(m, 'a'); }"
    assert Policy(both, limits=limits).bound == PolicyCost(steps=11, bytes=1_000, pixels=500)


def test_figure_4_is_read_as_it_is_printed() -> None:
    """Head, line numbers, comments, type words, accessors and endif; the scanned l is the exclamation mark it was."""
    policy = Policy((EXAMPLES / "icu_printed.policy").read_text())
    assert policy.program.is_printed
    assert policy.attributes == {"pulse", "patientID"}
    assert policy.reads == {"Battery", "NetworkConnection", "DisplaySize", "Timestamp", "responsible.*"}
    assert policy.writes == {"Timestamp"}


def test_the_printed_form_writes_automatic_variables_in_vain() -> None:
    """Section 4: setProperty and removeProperty on them do nothing."""
    head = "arrived(Message m, State s) :- "
    text = head + 's.setProperty("Battery", 1); s.removeProperty("Battery"); return m;'
    message, run = sent(text, device={"Battery": 0.5})
    assert message is not None
    assert run.changed == {}


@pytest.mark.parametrize("device", [{}, {"responsible.p1": 1}])
def test_they_are_written_in_vain_before_the_device_has_said_them(device: dict[str, Scalar]) -> None:
    """Before the first report the device has none of them; a manual one of the name would be read in its place."""
    head = "arrived(Message m, State s) :- "
    names = ("Battery", "NetworkConnection", "DisplaySize", "Place.latitude", "Place")
    text = head + "".join(f's.setProperty("{name}", 0.1); ' for name in names)
    message, run = sent(text + 'm.low = s.getProperty("Battery"); return m;', device=device)
    assert message is not None
    assert run.changed == {}
    assert "low" not in {name for name, value in message.changes.items() if value is not None}
    _, run = sent(head + 's.setProperty("mine", 0.1); return m;', device=device)
    assert run.changed == {"mine": 0.1}


@pytest.mark.parametrize(
    ("condition", "is_true"),
    [
        ("m.pulse > 50", True),
        ("m.pulse - 10 == 50", True),
        ("m.missing == NULL", True),
        ("m.pulse != NULL", True),
        ("m.missing > 1", False),
        ("not m.missing > 1", False),
        ("m.missing > 1 or m.pulse == 60", True),
        ("m['two words'] == 'x y'", True),
        ("m.room.floor == 2", True),
        ("m.getPulse() == 60", True),
        ("begins-with(m.name, 'Do') and not contains(m.name, 'z')", True),
        ("fold-case(m.name) == 'doris'", True),
        ("regex(m.name, '^D.*s$')", True),
        ("equals(m.pulse, 1, 60)", True),
        ("require(m.pulse)", True),
        ("int32(m.pulse) and real64(device.Battery)", True),
        ("size(m.name) == 5 and size(m) == 8", True),
        ("m.name in device.friends", True),
        ("isFriends(m.name)", True),
        ("m.pulse in device.friends", False),
        ("not m.name in device.nobody", True),
        ("not m.missing in device.friends", False),
        ("device.Battery < 0.5 ^^ m.pulse > 50", False),
        ("getTime() == 5", True),
        ("m.flag", True),
        ("m.name", False),
        ("m.pulse & 4 == 4", True),
        ("getProperty('Battery') == 0.25", True),
        ("state.Battery == NULL", True),
        ("5 / 0 == NULL", True),
    ],
)
def test_conditions(condition: str, *, is_true: bool) -> None:
    """Operators and functions are those of filters; undefined takes the else."""
    attributes: dict[str, Scalar] = {"pulse": 60, "name": "Doris", "two words": "x y", "room.floor": 2, "flag": 1}
    message, _ = sent(
        f"if ({condition}) {{ return m; }} else {{ return NULL; }}",
        attributes,
        device={"Battery": 0.25, "friends.Doris": 1},
        now=5_999_999,
    )
    assert (message is not None) is is_true


@pytest.mark.parametrize(
    ("expression", "length"),
    [
        ("fold-case(m.a) != NULL", 1_024),
        ("contains(m.a, 'a')", 4_096),
        ("begins-with(m.a, 'a')", 4_096),
        ("m.a == m.a", 16_384),
        ("(m.a in device.nothing) == 0", 1_024),
    ],
)
def test_on_strings_that_are_too_long_the_answer_is_undefined(expression: str, length: int) -> None:
    """A notification may have a megabyte, and a policy a thousand questions."""
    text = f"if ({expression}) {{ return m; }} return NULL;"
    assert sent(text, {"a": "a" * length})[0] is not None
    assert sent(text, {"a": "a" * (length + 1)})[0] is None


def test_variables_are_set_read_back_and_removed() -> None:
    """A run sees what it set itself; the run before is what the state holds."""
    text = "state.n = state.n + 1; if (state.n > 2) { removeProperty('n'); } state.flag = m.a > 1; return m;"
    _, run = sent(text, {"a": 2}, state={"n": 1})
    assert run.changed == {"n": 2, "flag": 1}
    assert run.read == {"n": 1}
    _, run = sent(text, {}, state={"n": 2, "flag": 1})
    assert run.changed == {"n": None, "flag": None}


def test_messages_are_values() -> None:
    """A copy that is changed leaves the first as it was."""
    message, _ = sent("copy = m; copy.a = 2; m.b = NULL; setData(m, getData(copy)); return m;", {"a": 1, "b": 1})
    assert message is not None
    assert message.changes == {"b": None}
    other, _ = sent("x = createMessage(); x.setPulse(m.a); x.setData('hi'); return x;", {"a": Int64(7)})
    assert other is not None
    assert (other.is_original, other.changes, other.data.text) == (False, {"pulse": 7}, "hi")


def test_a_policy_that_reaches_its_end_sends_what_arrived() -> None:
    """With what was set meanwhile; and a function without return answers NULL."""
    message, _ = sent("m.seen = 1;")
    assert message is not None
    assert message.changes == {"seen": 1}
    assert sent("function f(a) { x = a; } return f(m);")[0] is None


@pytest.mark.parametrize(
    ("battery", "network", "level"),
    [
        (1.0, 1.0, Level.WHOLE),
        (0.75, 1.0, Level.WHOLE),
        (0.7499, 1.0, Level.MOST),
        (1.0, 0.5, Level.MOST),
        (0.3, 0.9, Level.HALF),
        (0.25, 0.25, Level.HALF),
        (0.9, 0.0, Level.QUARTER),
        (None, None, Level.WHOLE),
        ("full", float("nan"), Level.WHOLE),
        (-5.0, float("-inf"), Level.QUARTER),
        (10**30, 7, Level.WHOLE),
    ],
)
def test_the_lesser_of_battery_and_link_decides_the_level(
    battery: Scalar | None, network: Scalar | None, level: Level
) -> None:
    """R1 to R3: from three quarters on all of it, then in four steps."""
    assert level_of(battery, network) is level


def test_a_summary_is_sent_with_the_first_arrival_after_its_time() -> None:
    """Per subject, over what was withheld too; no timer."""
    policy = Policy("return summarise(m, 300, 'pulse', 'name');")
    state: dict[str, Scalar] = {}
    outcomes = []
    for second, pulse in ((0, 60), (100, 40), (299, 80), (301, 70), (302, 90)):
        attributes: dict[str, Scalar] = {"pulse": pulse, "name": "x" * pulse * 4}
        run = Run(Arrival(attributes=attributes, subject="bed/1"), {}, state, second * 1_000_000)
        outcomes.append(policy.run(run))
        state = {name: value for name, value in {**state, **run.changed}.items() if value is not None}
    assert [outcome is not None for outcome in outcomes] == [False, False, False, True, False]
    summary = outcomes[3]
    assert summary is not None
    wanted = {"count": 4, "last": 70, "least": 40, "greatest": 80, "mean": 62.5}
    assert {word: summary.changes[f"pulse.{word}"] for word in wanted} == wanted
    assert (summary.changes["count"], summary.changes["since"]) == (4, 0)
    assert summary.changes["name.count"] == 4
    assert "name.last" not in summary.changes  # too long to be remembered
