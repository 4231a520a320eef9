"""When a stream starts its query again."""

from __future__ import annotations

from whimbrel.pipeline.spark.restarts import MAX_IN_A_ROW, Restarts

SLOW = "[STREAM_FAILED] Query terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"


def test_a_query_that_makes_batches_is_restarted_without_end() -> None:
    """A stream of months must not end because the machine was too busy, six times in all, to start a process."""
    restarts = Restarts()
    for _ in range(3 * MAX_IN_A_ROW):
        assert restarts.may_restart(SLOW)
        restarts.note_batch()


def test_a_query_that_never_starts_ends() -> None:
    """A Python that cannot be used must not be tried for ever."""
    restarts = Restarts()
    tries = [restarts.may_restart(SLOW) for _ in range(MAX_IN_A_ROW + 1)]
    assert tries == [True] * MAX_IN_A_ROW + [False]


def test_each_start_waits_longer_than_the_one_before() -> None:
    """Processes that were too slow go on starting: more of them at once make all of them slower."""
    restarts = Restarts()
    pauses = [restarts.pause_s for _ in range(9) if restarts.may_restart(SLOW)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (2.0, 60.0)


def test_other_errors_are_not_tried_again() -> None:
    """What failed in the fold fails again."""
    assert not Restarts().may_restart("[STREAM_FAILED] number 3 is not there any more")
