"""Decisions: the paper's cases as tables, and what a decision leaves behind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from whimbrel.language.policies import Policy, PolicyLimits
from whimbrel.language.policies.values import Compression, Level
from whimbrel.model.attributes import Scalar
from whimbrel.model.device import DeviceState
from whimbrel.model.facts import Decided, Outcome
from whimbrel.model.notification import Notification
from whimbrel.shape.decision import Decision, decide, decision_fact, finish
from whimbrel.shape.faults import Fault
from whimbrel.shape.state import ShapeState
from whimbrel.shape.variables import AutomaticVariables

EXAMPLES = Path(__file__).parents[2] / "examples" / "policies"
NOW = 1_700_000_000_000_000
SECOND_US = 1_000_000
POLICIES = {path.stem: Policy(path.read_text()) for path in EXAMPLES.glob("*.policy")}
# A JPEG header of 640 × 480 is all that a decision looks at.
ECG = b"\xff\xd8\xff\xc0\x00\x0b\x08" + (480).to_bytes(2, "big") + (640).to_bytes(2, "big") + bytes(9_000)
DISPLAY: dict[str, Scalar] = {"DisplayWidth": 240, "DisplayHeight": 320, "DisplaySize": 76_800}


def notification(attributes: Mapping[str, Scalar], body: bytes = b"", subject: str = "icu/1") -> Notification:
    """Return what was published."""
    return Notification(node="n", seq=7, published_at=NOW, subject=subject, attributes=attributes, body=body)


def told(body: Mapping[str, object]) -> Notification:
    """Return a notification whose attributes are those of its JSON body."""
    attributes = {name: value for name, value in body.items() if isinstance(value, int | float | str)}
    return notification(attributes, json.dumps(body).encode())


def icu(
    form: str, pulse: int, patient: str, state: dict[str, Scalar], manual: dict[str, Scalar], now: int = NOW
) -> Decision:
    """Return what the doctor of p1 gets."""
    arrived = notification({"pulse": pulse, "patientID": patient}, ECG)
    return decide(POLICIES[form], arrived, {**DISPLAY, "responsible.p1": 1, **state}, manual, now=now)


FULL: dict[str, Scalar] = {"Battery": 1.0, "NetworkConnection": 1.0}


@pytest.mark.parametrize("form", ["icu_printed", "icu"])
@pytest.mark.parametrize(
    ("rule", "pulse", "patient", "state", "level"),
    [
        ("R1", 80, "p1", FULL, Level.WHOLE),
        ("R1: battery at its threshold", 80, "p1", {"Battery": 0.75, "NetworkConnection": 1.0}, Level.WHOLE),
        ("R2: below 75 %", 80, "p1", {"Battery": 0.74, "NetworkConnection": 1.0}, Level.MOST),
        ("R2: the ratio by the battery", 80, "p1", {"Battery": 0.3, "NetworkConnection": 1.0}, Level.HALF),
        ("R2: at 25 % still compressed", 80, "p1", {"Battery": 0.25, "NetworkConnection": 1.0}, Level.HALF),
        ("R3", 80, "p1", {"Battery": 1.0, "NetworkConnection": 0.6}, Level.MOST),
        ("R3: a bad link", 80, "p1", {"Battery": 1.0, "NetworkConnection": 0.1}, Level.QUARTER),
        ("R4: alarm of a stranger", 49, "p2", FULL, Level.WHOLE),
        ("R4: at its threshold", 50, "p2", FULL, Level.WHOLE),
        ("R4: by R2", 50, "p2", {"Battery": 0.5, "NetworkConnection": 1.0}, Level.MOST),
        ("a stranger whose pulse is good", 51, "p2", FULL, None),
        ("nothing reported yet", 80, "p1", {}, Level.WHOLE),
    ],
)
def test_the_rules_of_the_intensive_care_unit(
    form: str, rule: str, pulse: int, patient: str, state: dict[str, Scalar], level: Level | None
) -> None:
    """Section 5: "beyond" means below; the picture is never larger than the display."""
    made = icu(form, pulse, patient, state, {})
    assert made.fault is None, rule
    assert (made.changed, made.removed) == ({}, ())
    if level is None:
        assert made.outcome is Outcome.WITHHELD
        return
    assert made.outcome is Outcome.DELIVERED
    assert made.work is not None
    assert made.work.transforms == (Compression(level, 240, 320, 76_800),)
    assert (made.cost.bytes, made.cost.pixels) == (len(ECG), 640 * 480)


@pytest.mark.parametrize("state", [{}, FULL, {"Battery": 0.01, "NetworkConnection": 0.01}])
@pytest.mark.parametrize(("pulse", "patient", "is_sent"), [(80, "p1", True), (51, "p2", False), (50, "p2", True)])
def test_the_stateless_policy_looks_at_no_device(
    state: dict[str, Scalar], pulse: int, patient: str, *, is_sent: bool
) -> None:
    """What P_ICU is held against in 6.3: the whole picture, however bad the link and the battery are."""
    made = icu("icu_stateless", pulse, patient, state, {})
    assert made.outcome is (Outcome.DELIVERED if is_sent else Outcome.WITHHELD)
    assert made.work is None
    assert made.is_original or not is_sent
    assert not made.changed


@pytest.mark.parametrize("form", ["icu_printed", "icu"])
@pytest.mark.parametrize(
    ("battery", "since_s", "sent"),
    [(0.24, None, "starts"), (0.24, 299, "no"), (0.24, 300, "no"), (0.24, 301, "yes"), (0.0, 10_000, "yes")],
)
def test_under_a_quarter_the_pulse_alone_every_five_minutes(
    form: str, battery: float, since_s: int | None, sent: str
) -> None:
    """R2: the first message only starts the five minutes; 300 s are not more than 300 s."""
    stamp = NOW // SECOND_US
    manual: dict[str, Scalar] = {} if since_s is None else {"Timestamp": stamp - since_s}
    made = icu(form, 80, "p1", {"Battery": battery, "NetworkConnection": 1.0}, manual)
    assert (made.outcome is Outcome.DELIVERED) is (sent == "yes")
    assert made.changed == ({} if sent == "no" else {"Timestamp": stamp})
    if sent == "yes":
        assert made.body == b'{"pulse":80}'
        assert made.attributes == {"pulse": 80}
        assert not made.is_original


QUOTE = {"symbol": "IBM", "price": 19.5, "change": -1.5, "volume": 1_200}
GOOD: dict[str, Scalar] = {"Battery": 0.9, "NetworkConnection": 0.95}


@pytest.mark.parametrize(
    ("quote", "state", "sent"),
    [
        ({}, GOOD, "all"),
        ({"symbol": "DELL", "price": 29.0}, GOOD, "all"),
        ({"symbol": "MSFT", "price": 99.0}, GOOD, "all"),
        ({"symbol": "SUNW"}, GOOD, "nothing"),
        ({}, {**GOOD, "Battery": 0.3}, "all"),
        ({}, {**GOOD, "Battery": 0.29}, "all"),
        ({"price": 20.0}, {**GOOD, "Battery": 0.29}, "nothing"),
        ({"symbol": "DELL"}, {**GOOD, "Battery": 0.29}, "nothing"),
        ({}, {**GOOD, "NetworkConnection": 0.4}, "quote"),
        ({}, {"Battery": 0.1, "NetworkConnection": 0.4}, "quote"),
        ({}, {}, "all"),
    ],
)
def test_the_stock_quotes(quote: dict[str, object], state: dict[str, Scalar], sent: str) -> None:
    """Section 1: three companies, IBM below $20 alone on a low battery, the quote alone on a bad link."""
    arrived = told({**QUOTE, **quote})
    made = decide(POLICIES["stock"], arrived, state, {}, now=NOW)
    assert made.fault is None
    assert (made.outcome is Outcome.DELIVERED) is (sent != "nothing")
    if sent == "all":
        assert made.is_original
        assert made.body == arrived.body
    elif sent == "quote":
        found = {**QUOTE, **quote}
        assert json.loads(made.body) == {"symbol": found["symbol"], "price": found["price"]}


MAP = {"kind": "map", "found": "survivor", "where": {"street": "Elm", "floor": 2}, "drawing": "x" * 6_000}


@pytest.mark.parametrize(
    ("state", "is_whole"),
    [(GOOD, True), ({**GOOD, "Battery": 0.2}, False), ({**GOOD, "NetworkConnection": 0.3}, False), ({}, True)],
)
def test_the_disaster(state: dict[str, Scalar], *, is_whole: bool) -> None:
    """Section 1: the complex map, or simple indications alone."""
    made = decide(POLICIES["disaster"], told(MAP), state, {}, now=NOW)
    assert made.outcome is Outcome.DELIVERED
    if is_whole:
        assert (made.is_original, made.work) == (True, None)
        return
    assert made.work is not None  # six kilobytes are not light
    assert made.work.transforms
    assert not made.work.is_light


def test_a_decision_is_a_fact_and_the_fold_of_facts_is_the_state() -> None:
    """What is set by one run is read by the next, through the log and nothing else."""
    policy = Policy("state.n = state.n + 1; if (state.n == NULL) { state.n = 1; } return m;")
    state = ShapeState()
    for seq in range(3):
        arrived = notification({}, b"x")
        made = decide(policy, arrived, {}, state.manual("d", "p"), now=NOW)
        state.apply(a_fact(made, arrived, seq=seq))
    assert state.manual("d", "p") == {"n": 3}
    assert state.manual("d", "q") == state.manual("e", "p") == {}


def a_fact(
    made: Decision, arrived: Notification, *, seq: int = 1, policy_seq: int = 0, is_kept: bool = True
) -> Decided:
    """Return the fact of a decision."""
    names = {"session": "s", "device": "d", "policy": "p"}
    return decision_fact(made, arrived.id, node="n", seq=seq, now=NOW, policy_seq=policy_seq, is_kept=is_kept, **names)


def test_the_fact_holds_what_may_have_to_be_sent_again() -> None:
    """The decided body, unless it is the notification's own; at quality 0 its hash suffices."""
    arrived = told({"a": 1, "b": 2})
    made = decide(Policy("m.b = NULL; return m;"), arrived, {"Battery": 0.5}, {}, now=NOW)
    fact = a_fact(made, arrived)
    assert (fact.body, fact.body_hash) == (b'{"a":1}', hashlib.sha256(b'{"a":1}').digest())
    assert (fact.body_bytes, fact.attributes) == (7, {"a": 1})
    assert a_fact(made, arrived, is_kept=False).body is None
    whole = decide(Policy("return m;"), arrived, {}, {}, now=NOW)
    assert (a_fact(whole, arrived).body, a_fact(whole, arrived).attributes) == (None, None)


@pytest.mark.parametrize(
    ("text", "body", "limits", "fault"),
    [
        ("state.a = m.long; return m;", b"", PolicyLimits(), Fault.VARIABLES),
        ("state.a = 1; state.b = 2; return m;", b"", PolicyLimits(variables=1), Fault.VARIABLES),
        ("m.a = m.long; m.b = m.long; m.c = m.long; m.d = m.long; return m;", b"", PolicyLimits(), Fault.ATTRIBUTES),
        ("return compress(m, 0.5, 1, 1);", ECG, PolicyLimits(body_bytes=999), Fault.BODY_BYTES),
        ("return compress(m, 0.5, 1, 1);", ECG, PolicyLimits(image_pixels=999), Fault.PIXELS),
        ("return compress(m, 0.5, 1, 1);", ECG[:8], PolicyLimits(), Fault.UNREADABLE),
        ("return project(m, 'a');", b'{"a": ', PolicyLimits(), Fault.UNREADABLE),
    ],
)
def test_a_decision_that_fails_withholds_and_says_why(
    text: str, body: bytes, limits: PolicyLimits, fault: Fault
) -> None:
    """And changes no variable: what failed has not happened."""
    text = f"state.x = 1; {text}" if fault is not Fault.VARIABLES else text
    arrived = notification({"long": "x" * 20_000}, body)
    made = decide(Policy(text, limits=limits), arrived, {}, {}, now=NOW, limits=limits)
    assert (made.outcome, made.fault) == (Outcome.WITHHELD, fault)
    assert (made.changed, made.removed) == ({}, ())
    assert a_fact(made, arrived).reason == fault.value


def test_what_comes_of_the_work_ends_the_decision() -> None:
    """A body, or a fault that undoes what the policy set."""
    arrived = notification({}, ECG)
    made = decide(Policy("state.x = 1; return compress(m, 0.5, 1, 1);"), arrived, {}, {}, now=NOW)
    assert made.work is not None
    whole = finish(made, b"small")
    assert (whole.work, whole.body, whole.is_original, whole.changed) == (None, b"small", False, {"x": 1})
    assert finish(made, ECG).is_original
    failed = finish(made, Fault.TIME_OUT)
    assert (failed.outcome, failed.fault, failed.changed) == (Outcome.WITHHELD, Fault.TIME_OUT, {})


@pytest.mark.parametrize(
    "text",
    [
        "x = createMessage(); x.a = m.a; setData(x, {}); return x;",
        "setData(m, {}); return m;",
        "setData(m, {}); m.b = 2; m.b = NULL; return m;",
    ],
)
@pytest.mark.parametrize(("data", "body"), [("''", b""), ("NULL", b'{"a":1}'), ("'hi'", b"hi")])
def test_empty_data_is_an_empty_body_and_no_data_are_the_attributes(text: str, data: str, body: bytes) -> None:
    """Of a message that was made, and of one that arrived."""
    arrived = Notification(node="n", seq=1, published_at=0, attributes={"a": 1}, body=b"xyz")
    made = decide(Policy(text.format(data)), arrived, {}, {}, now=0)
    assert (made.body, made.work, made.fault) == (body, None, None)


@pytest.mark.parametrize(
    ("reported", "has_number", "has_text"),
    [('[7, "x"]', True, False), ('["7"]', False, True), ('[7, "7"]', True, True), ('["07"]', False, False)],
)
def test_members_of_a_set_keep_their_type(reported: str, *, has_number: bool, has_text: bool) -> None:
    """A patient is 7 or "7", and a doctor is responsible for one of the two."""
    variables = AutomaticVariables()
    variables.take(DeviceState.from_report(f'{{"mine": {reported}}}', device="d", now=0))
    for item, expected in ((7, has_number), ("7", has_text)):
        for test in ("m.a in device.mine", "isMine(m.a)"):
            made = decide(
                Policy(f"if ({test}) {{ return m; }} return NULL;"), _arrived(item), variables.values, {}, now=0
            )
            assert (made.outcome is Outcome.DELIVERED) is expected
    older = {"mine": 1, "mine.7": 1}  # a report of an older version does not say which it was
    for item in (7, "7"):
        made = decide(Policy("if (m.a in device.mine) { return m; } return NULL;"), _arrived(item), older, {}, now=0)
        assert made.outcome is Outcome.DELIVERED


def _arrived(value: int | str) -> Notification:
    return Notification(node="n", seq=1, published_at=0, attributes={"a": value})
