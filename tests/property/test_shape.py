"""Shape: any body, any state; nothing is raised, nothing is exceeded, and replay gives the same state."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from policy_texts import policy_texts
from strategies import facts, scalars

from whimbrel.errors import PolicyError
from whimbrel.language.policies import Policy, PolicyCost, PolicyLimits
from whimbrel.language.policies.values import Compression, Level, Projection
from whimbrel.model.facts import Fact, Outcome
from whimbrel.model.notification import Notification
from whimbrel.model.rows import fact_of, row_of
from whimbrel.shape.decision import decide, decision_fact, finish
from whimbrel.shape.faults import Fault, TransformError
from whimbrel.shape.state import ShapeState
from whimbrel.shape.transforms import Work, cost_of, drop_needless, perform

LIMITS = PolicyLimits(
    body_bytes=2_000, image_pixels=1_000, variables=3, variable_bytes=60, bytes=10**6, pixels=10**6, steps=10**6
)


def _image(form: str, width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.effect_noise((width, height), 40).save(out, form)
    return out.getvalue()


IMAGES = [_image(form, *size) for form in ("JPEG", "PNG") for size in ((1, 1), (20, 10), (50, 50))]
_NAMES = st.lists(st.sampled_from(["a", "b", "a.b", "pulse"]), min_size=1, max_size=3).map(tuple)
_COMPRESSIONS = st.builds(
    Compression,
    st.sampled_from(Level),
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(0, 300),
    st.just(()) | _NAMES,
)
_TRANSFORMS = st.lists(_COMPRESSIONS | st.builds(Projection, _NAMES), max_size=3).map(tuple)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Return images whole, cut and damaged, JSON and nearly JSON, and anything else."""
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return draw(st.binary(max_size=60) | st.just(b"\xff\xd8\xff") | st.just(b"\x89PNG\r\n\x1a\n"))
    if kind == 1:
        return draw(st.sampled_from([b'{"a":{"b":1},"pulse":60}', b'{"a":1,"a":2}', b'{"a":', b'{"a":NaN}', b"{}"]))
    body = draw(st.sampled_from(IMAGES))
    if kind == 2:
        return body[: draw(st.integers(0, len(body)))]
    at = draw(st.integers(0, len(body) - 1))
    return body[:at] + draw(st.binary(max_size=4)) + body[at:]


@given(
    body=bodies(),
    transforms=_TRANSFORMS,
    changes=st.dictionaries(st.sampled_from(["a", "a.b", "x"]), st.none() | scalars()),
)
def test_any_body_is_transformed_or_refused_with_a_fault(
    body: bytes, transforms: tuple[Compression | Projection, ...], changes: dict[str, object]
) -> None:
    """Whatever strangers publish: bytes come out, no longer than they must be, or the reason why not."""
    work = Work(body, transforms, changes)  # type: ignore[arg-type]
    assert len(work.key) == 32
    try:
        part = drop_needless(work)
        if part is None:
            return
        cost = cost_of(part, LIMITS)
        made = perform(part, LIMITS)
    except TransformError as error:
        made, cost = error.fault.value.encode(), PolicyCost()
    assert cost.bytes <= LIMITS.body_bytes * len(transforms)
    assert cost.pixels <= LIMITS.image_pixels * len(transforms)
    assert isinstance(made, bytes)


@given(text=policy_texts(), body=bodies(), data=st.data())
def test_a_decision_raises_nothing_and_keeps_every_limit(text: str, body: bytes, data: st.DataObject) -> None:
    """Steps, bytes, pixels, variables; and it is a fact that the log can hold."""
    try:
        policy = Policy(text, limits=LIMITS)
    except PolicyError:
        return
    names = st.sampled_from(["a", "b", "pulse"])
    attributes = data.draw(st.dictionaries(names, scalars()))
    automatic = data.draw(st.dictionaries(st.sampled_from(["x", "Battery", "DisplayWidth", "seen.p1"]), scalars()))
    state = ShapeState()
    for seq in range(3):
        arrived = Notification(node="n", seq=seq, published_at=0, subject="s", attributes=attributes, body=body)
        made = decide(policy, arrived, automatic, state.manual("d", "p"), now=seq * 10**6, limits=LIMITS)
        assert made.fault is not Fault.ERROR
        assert made.cost.steps <= policy.bound.steps
        assert made.cost.bytes <= policy.bound.bytes
        assert made.cost.pixels <= policy.bound.pixels
        if made.work is not None:
            made = finish(made, data.draw(st.just(b"smaller") | st.just(body) | st.just(Fault.TIME_OUT)))
        assert (made.outcome is Outcome.DELIVERED) or not made.body
        names_of = {"session": "s", "device": "d", "policy": "p"}
        fact = decision_fact(made, arrived.id, node="n", seq=9 + seq, now=0, policy_seq=1, is_kept=True, **names_of)
        state.apply(fact_of(*row_of(fact)))
        assert len(state.manual("d", "p")) <= LIMITS.variables
        assert state.manual("e", "p") == state.manual("d", "q") == {}


@given(found=st.lists(facts(node="n"), max_size=20))
def test_any_log_folds_and_folds_alike(found: list[Fact]) -> None:
    """Live and replayed, whatever the facts are."""
    one, other = ShapeState(), ShapeState()
    for fact in found:
        one.apply(fact)
    for fact in found:
        other.apply(fact_of(*row_of(fact)))
    assert repr(_everything(one)) == repr(_everything(other))
    for device in [*one.devices]:
        one.forget(device)
    assert not one.devices


def _everything(state: ShapeState) -> object:
    automatic = {device: state.automatic(device) for device in state.devices}
    manual = {key: state.manual(*key) for key in state.variables}
    failures = {key: state.failures.list_failures(*key) for key in state.failures}
    return automatic, manual, state.policies, state.choices, failures
