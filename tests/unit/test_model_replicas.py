"""The replica plan: Campus++'s equation with its bounds, exact where it can be said by hand."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterable
from itertools import pairwise, product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from whimbrel.errors import InvalidValueError
from whimbrel.model.replicas import find_unserved, plan, unserved_note

popularities = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=4), st.integers(0, 10**6), max_size=60)


@given(subscribers=popularities, nodes=st.integers(1, 200), slots=st.integers(1, 20), target=st.floats(0.1, 1))
def test_the_plan_keeps_its_bounds(subscribers: dict[str, int], nodes: int, slots: int, target: float) -> None:
    """A plan that does not fit the devices' memory is none."""
    capacity = math.floor(nodes * slots * target + 1e-9)
    beyond = find_unserved(subscribers, nodes=nodes, slots_per_node=slots, target=target)
    copies = plan(subscribers, nodes=nodes, slots_per_node=slots, target=target)
    assert copies.keys() == subscribers.keys()
    assert len(beyond) == max(0, len(subscribers) - capacity)
    assert all(copies[name] == 1 for name in beyond)
    assert sum(copies.values()) - len(beyond) <= capacity
    served = [subscribers[name] for name in subscribers if name not in beyond]
    assert max((subscribers[name] for name in beyond), default=0) <= min(served, default=10**6)
    assert all(1 <= count <= nodes for count in copies.values())


@given(subscribers=popularities, nodes=st.integers(1, 200), slots=st.integers(1, 20))
def test_more_subscribers_never_mean_fewer_copies(subscribers: dict[str, int], nodes: int, slots: int) -> None:
    """Else a subject would do better by losing a reader."""
    copies = plan(subscribers, nodes=nodes, slots_per_node=slots)
    ranked = sorted(subscribers, key=lambda name: subscribers[name])
    assert all(copies[low] <= copies[high] for low, high in pairwise(ranked) if subscribers[low] < subscribers[high])


@given(subscribers=popularities, nodes=st.integers(2, 200), slots=st.integers(1, 20))
def test_memory_is_left_only_where_nobody_could_use_it(subscribers: dict[str, int], nodes: int, slots: int) -> None:
    """What a bound takes away is given to the others."""
    capacity = math.floor(nodes * slots * 0.8 + 1e-9)
    assume(len(subscribers) <= capacity)
    copies = plan(subscribers, nodes=nodes, slots_per_node=slots)
    wanted = [name for name in subscribers if subscribers[name]]
    assert sum(copies.values()) == capacity or all(copies[name] == nodes for name in wanted)


def best_copies(counts: list[int], capacity: int, most: int) -> list[int]:
    """Return the plan in whole numbers with the least Σ S / L: each copy goes where it saves the most."""
    copies = [1] * len(counts)
    for _ in range(capacity - len(counts)):
        savings = [
            count / (have * (have + 1)) if have < most else 0 for count, have in zip(counts, copies, strict=True)
        ]
        if not any(savings):
            break
        copies[savings.index(max(savings))] += 1
    return copies


def delay(counts: list[int], copies: Iterable[int]) -> float:
    """Return the delay that a plan leaves, as the formula counts it: Σ S / L."""
    return sum(count / have for count, have in zip(counts, copies, strict=True))


@given(
    counts=st.lists(st.integers(0, 100) | st.integers(0, 10**5), min_size=1, max_size=8),
    nodes=st.integers(1, 30),
    slots=st.integers(1, 4),
)
def test_no_plan_in_whole_numbers_is_more_than_five_percent_better(counts: list[int], nodes: int, slots: int) -> None:
    """The formula is exact for fractions; largest remainders cost 2.3 % in random cases, 3 % in sought ones."""
    capacity = math.floor(nodes * slots * 0.8 + 1e-9)
    assume(len(counts) <= capacity)
    copies = plan({f"t{place}": count for place, count in enumerate(counts)}, nodes=nodes, slots_per_node=slots)
    found = delay(counts, (copies[f"t{place}"] for place in range(len(counts))))
    assert found <= 1.05 * delay(counts, best_copies(counts, capacity, nodes))


@given(counts=st.lists(st.integers(0, 50), min_size=1, max_size=3), nodes=st.integers(1, 5), spare=st.integers(0, 5))
def test_the_best_plan_of_these_tests_is_the_best_of_all(counts: list[int], nodes: int, spare: int) -> None:
    """Every plan in whole numbers is tried."""
    capacity = len(counts) + spare
    plans = (each for each in product(range(1, nodes + 1), repeat=len(counts)) if sum(each) <= capacity)
    best = min(delay(counts, each) for each in plans)
    assert delay(counts, best_copies(counts, capacity, nodes)) == pytest.approx(best)


def test_copies_follow_the_square_root() -> None:
    """Equation 1 by hand: 80 · 4/7, 2/7, 1/7 are 45.7, 22.9 and 11.4; the two largest remainders are rounded up."""
    assert plan({"a": 16, "b": 4, "c": 1}, nodes=100, slots_per_node=1) == {"a": 46, "b": 23, "c": 11}


def test_the_surplus_of_a_bound_is_shared_again() -> None:
    """Of 16 places 'a' would take 14.5 and has 10 nodes; the other six go by the roots of 1 and 1."""
    assert plan({"a": 400, "b": 1, "c": 1}, nodes=10, slots_per_node=2) == {"a": 10, "b": 3, "c": 3}


def test_what_falls_below_one_is_made_up_by_the_others() -> None:
    """Of 8 places the roots 100 : 1 : 1 would leave a part of one; the source's own copy counts."""
    assert plan({"a": 10_000, "b": 1, "c": 1}, nodes=10, slots_per_node=1) == {"a": 6, "b": 1, "c": 1}


def test_the_papers_scenario_fills_eighty_percent() -> None:
    """100 nodes of 10 samples and 100 topics: eight copies each if all are equal, else Zipf's 0.8 decides."""
    flat = plan({f"t{number}": 5 for number in range(100)}, nodes=100, slots_per_node=10)
    assert set(flat.values()) == {8}
    zipf = {f"t{rank:02}": round(1_000 / rank**0.8) for rank in range(1, 101)}
    copies = plan(zipf, nodes=100, slots_per_node=10)
    roots = sum(math.sqrt(count) for count in zipf.values())
    assert sum(copies.values()) == 800
    assert all(abs(copies[name] - 800 * math.sqrt(zipf[name]) / roots) < 1 for name in zipf)


def test_what_nobody_wants_keeps_the_copy_of_its_source() -> None:
    """Its first subscriber must find it somewhere."""
    assert plan({"a": 0, "b": 9}, nodes=10, slots_per_node=1) == {"a": 1, "b": 7}
    assert plan({"a": 0, "b": 0}, nodes=10, slots_per_node=1) == {"a": 1, "b": 1}
    assert plan({}, nodes=10, slots_per_node=1) == {}


def test_more_subjects_than_places_leave_the_least_wanted_with_one_copy() -> None:
    """The most wanted that fit are served; each other keeps its source's own copy, and is named."""
    wanted = {f"t{number}": 9 - number for number in range(9)}
    memory = {"nodes": 5, "slots_per_node": 2}
    assert plan(wanted, **memory) == dict.fromkeys(wanted, 1)
    assert find_unserved(wanted, **memory) == ["t8"]
    assert find_unserved({**wanted, "a": 5}, **memory) == ["t7", "t8"]
    assert find_unserved(dict.fromkeys("cba", 3), nodes=2, slots_per_node=1) == ["b", "c"]
    assert find_unserved(dict.fromkeys(map(str, range(8)), 1), **memory) == []


def test_what_is_beyond_a_plan_is_counted_and_named() -> None:
    """A log of a million subjects has a short sentence, too."""
    many = {f"t{number:07}": 1 for number in range(1_000)}
    told = unserved_note(find_unserved(many, nodes=5, slots_per_node=2), subjects=len(many))
    assert told.startswith("992 of 1,000 subjects are beyond the memory and keep one copy, their source's: t0000008, ")
    assert told.endswith(", … (982 more)")
    assert len(told) < 250


@pytest.mark.parametrize(("nodes", "slots", "target"), [(0, 1, 0.8), (1, 0, 0.8), (1, 1, 1.1), (1, 1, float("nan"))])
def test_impossible_memory_is_refused(nodes: int, slots: int, target: float) -> None:
    """A slip in the numbers must not become a plan."""
    with pytest.raises(InvalidValueError):
        plan({}, nodes=nodes, slots_per_node=slots, target=target)


def test_a_carrier_plans_without_numpy() -> None:
    """The formula runs on a node, where there is no room for numpy and no Spark."""
    code = "import sys, whimbrel.model.replicas; print([name for name in ('numpy', 'pyspark') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
