"""How the nodes of a batch are divided among tasks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from whimbrel.pipeline.stream.groups.preparing import NodeInGroups
from whimbrel.pipeline.stream.job import Span
from whimbrel.pipeline.stream.tasks import NodeTask, divide


def _tasks(*facts: int) -> list[NodeTask]:
    return [NodeTask(f"n{number}", Span(1, count, len(facts)), None) for number, count in enumerate(facts)]


def _loads(divided: Sequence[Sequence[NodeTask | NodeInGroups]]) -> list[int]:
    return [sum(task.span.last for task in own) for own in divided]


def test_equal_nodes_are_shared_evenly() -> None:
    """Eight nodes on four cores: two each, and not 5, 2, 1 and 0 as their names fall."""
    assert _loads(divide(_tasks(*[500] * 8), 4)) == [1_000] * 4


def test_the_largest_come_first() -> None:
    """A large node that begins last would leave the other cores idle."""
    divided = divide(_tasks(10, 9_000, 5_000, 20, 5_000), 2)
    assert _loads(divided) == [9_000, 5_000, 5_000, 20, 10]


@pytest.mark.parametrize(("cores", "tasks"), [(1, 4), (16, 64), (64, 100)])
def test_tasks_follow_the_cores_that_there_are(cores: int, tasks: int) -> None:
    """A stream that began on one core uses all of sixty-four when it is started there."""
    divided = divide(_tasks(*[10_000] * 100), cores)
    assert len(divided) == tasks
    assert sorted(task.node for own in divided for task in own) == sorted(f"n{number}" for number in range(100))


def test_small_nodes_share_a_task() -> None:
    """A task costs as much as a thousand facts."""
    assert len(divide(_tasks(*[2] * 100), 64)) == 1
