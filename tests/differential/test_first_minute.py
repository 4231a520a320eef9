"""The first minute: filters matched one by one, and the change to the kernels under load, give the same deliveries."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from whimbrel.broker.state.routes import Routes
from whimbrel.language.printer import print_filter
from whimbrel.match.matcher import Matcher
from whimbrel.model.attributes import Attributes
from whimbrel.model.subscription import Subscription
from whimbrel.testing.strategies import attributes, filters

_SUBJECTS = ("ward/3/bed", "ward/4/bed", "lab")


def _subscription(number: int, subject_filter: str, text: str | None) -> Subscription:
    return Subscription(session=f"s{number}", subject_filter=subject_filter, filter_text=text)


def _found(routes: Routes, subject: str, rows: list[Attributes]) -> list[list[tuple[str, object]]]:
    handles = routes.by_content([subject] * len(rows), rows)
    return [list(routes.subscribers(subject, each)) for each in handles]


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(filters().map(print_filter).filter(lambda text: "\0" not in text), min_size=1, max_size=24),
    removed=st.sets(st.integers(0, 23), max_size=6),
    rows=st.lists(attributes(), min_size=1, max_size=16),
    moment=st.integers(0, 24),
    data=st.data(),
)
def test_the_kernels_take_over_and_nobody_notices(
    texts: list[str], removed: set[int], rows: list[Attributes], moment: int, data: st.DataObject
) -> None:
    """A broker listens before its kernels are there; a delivery must not depend on when they came."""
    jobs: list[Callable[[], None]] = []
    plain, changing = Routes(), Routes(lambda: Matcher(run=jobs.append))
    for number, text in enumerate(texts):
        subscription = _subscription(number, data.draw(st.sampled_from(("ward/+/bed", "ward/3/#", "lab"))), text)
        for routes in (plain, changing):
            routes.put(subscription)
        if number == moment:
            changing._matcher.content.repack()  # the kernels come, and everything so far is packed
        if number in removed:
            for routes in (plain, changing):
                routes.remove(subscription.session, (subscription.subject_filter, subscription.name))
    for subject in _SUBJECTS:
        assert _found(changing, subject, rows) == _found(plain, subject, rows)
    changing._matcher.content.repack(whole=True)
    assert not changing.unpacked
    for subject in _SUBJECTS:
        assert _found(changing, subject, rows) == _found(plain, subject, rows)
