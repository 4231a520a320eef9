"""Blocking tasks: work that takes too long for the event loop, such as verifying a password.

The core queues a task; the shell runs it in a worker thread, a few at a time, and returns its result to the core.
Rule: the queue is fair. Addresses take turns, and within an address its users. Every other turn is reserved for users
who gave a right password at their address before. So the number of wrong passwords that one user queues does not delay
another user: only the number of addresses in the queue does, and of users at the same address.
Rule: wrong passwords are rate-limited for each user or session at each address, and for the address as a whole with a
higher limit. The limit of an address does not apply to users who gave a right password there before.
Rule: the limit is checked when the turn of a task comes, and a task over the limit is refused without being run. So a
client that has given too many wrong passwords learns nothing from its tasks that still wait.
Rule: a task whose client is gone is not run. Verifying a password takes most of a second, and a client that reconnects
must not wait behind the tasks of its earlier connections.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from whimbrel.broker.limits.counters import Counters
from whimbrel.broker.limits.password_rate_limit import PasswordRateLimit, origin_of

__all__ = ["BlockingTask", "BlockingTasks", "FairQueue", "RequesterId"]

_NAMES_AT_AN_ADDRESS = 10
"""Factor between the limit of wrong passwords of an address as a whole and that of each name at the address."""
_MAX_RIGHT = 10_000

_Answer = TypeVar("_Answer")
_T = TypeVar("_T")


class FairQueue(Generic[_T]):
    """Fair queue (round robin) of items of users at addresses, however many items each has put in.

    Addresses take turns, one item each, and within an address its users take turns. The items of one user at one
    address keep their order.
    """

    def __init__(self) -> None:
        self._addresses: dict[str, dict[str, deque[_T]]] = {}
        """Items by address and user; the addresses, and the users of each, are in the order of their turns."""
        self._counts: dict[str, int] = {}
        """Number of items of each address."""

    def __len__(self) -> int:
        return sum(self._counts.values())

    def __bool__(self) -> bool:
        return bool(self._counts)

    def waiting(self, address: str) -> int:
        """Return the number of items of *address* in the queue."""
        return self._counts.get(address, 0)

    def put(self, address: str, user: str, item: _T) -> None:
        """Add *item* of *user* at *address* to the queue."""
        self._addresses.setdefault(address, {}).setdefault(user, deque()).append(item)
        self._counts[address] = self._counts.get(address, 0) + 1

    def take(self) -> _T:
        """Remove and return the next item; the queue must not be empty."""
        address = next(iter(self._addresses))
        users = self._addresses.pop(address)
        user = next(iter(users))
        items = users.pop(user)
        item = items.popleft()
        if items:
            users[user] = items  # this user's next turn is behind those of the other users
        if users:
            self._addresses[address] = users  # behind the other addresses
            self._counts[address] -= 1
        else:
            del self._counts[address]
        return item


class RequesterId(NamedTuple):
    """Requester of a blocking task: its address, and the user (or client) by which requesters take turns.

    *names* are the users or sessions whose passwords are tried; the rate limits count by them and by *address*.
    """

    address: str
    user: str
    names: tuple[str, ...] = ()

    def names_here(self) -> list[str]:
        """Return the keys under which wrong and right passwords are counted: one for each name at this address."""
        origin = origin_of(self.address)
        return [f"{origin}\0{name}\0" for name in self.names]  # never an address: it ends with U+0000


class BlockingTask:
    """One task: *ask* may run in any thread; the others are called in the core's thread.

    *then* is called with the result and the time, *refuse* if the task is over a limit. If *is_wanted* returns False
    when the turn of the task comes, the task is dropped.
    """

    __slots__ = ("ask", "asker", "is_wanted", "refuse", "then")

    def __init__(
        self,
        asker: RequesterId,
        ask: Callable[[], object],
        then: Callable[[object, int], None],
        refuse: Callable[[], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        self.asker, self.ask, self.then, self.refuse = asker, ask, then, refuse
        self.is_wanted = is_wanted


class BlockingTasks:
    """The blocking tasks of a broker; at most *most* may wait, and half as many of one address.

    *wrong_per_minute* is the limit of wrong passwords of each user or session at an address (0: no limit).
    """

    def __init__(self, wrong_per_minute: int, counters: Counters, *, most: int) -> None:
        self._by_name = PasswordRateLimit(wrong_per_minute)
        self._by_address = PasswordRateLimit(wrong_per_minute * _NAMES_AT_AN_ADDRESS)
        self._counters, self._most = counters, most
        self._known: FairQueue[BlockingTask] = FairQueue()
        self._others: FairQueue[BlockingTask] = FairQueue()
        self._is_turn_of_others = False
        self._right: dict[str, None] = {}
        """Pairs of name and address from which a right password was given, the latest last."""
        self._count = 0
        self.listened_us = 0
        """Monotonic time in microseconds (of ``Broker.end_silent``), because steps of a wall clock would end limits."""

    def __len__(self) -> int:
        return self._count

    def is_full(self, address: str) -> bool:
        """Return whether the queue is full, as a whole or for *address*."""
        origin = origin_of(address)
        waiting = self._known.waiting(origin) + self._others.waiting(origin)
        return self._count >= self._most or waiting >= max(1, self._most // 2)

    def put(
        self,
        asker: RequesterId,
        ask: Callable[[], _Answer],
        then: Callable[[_Answer, int], None],
        refuse: Callable[[], None],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Queue a task: *ask* runs in a worker thread, and *then* is called with its result and the time.

        If *asker* has given too many wrong passwords when its turn comes, *refuse* is called instead. If *is_wanted*
        returns False by then, nothing is called.
        """
        question = BlockingTask(asker, ask, partial(_call_with, then), refuse, is_wanted)
        is_known = bool(asker.names) and all(key in self._right for key in asker.names_here())
        queue = self._known if is_known else self._others
        queue.put(origin_of(asker.address), asker.user, question)
        self._count += 1

    def next(self, listened_us: int) -> BlockingTask | None:
        """Return the next task to run, or None; drop or refuse the tasks before it that must not run.

        *listened_us* is the current time of the broker's monotonic clock.
        """
        self.listened_us = listened_us
        while self._count:
            question = self._take()
            if not question.is_wanted():
                continue
            if self._may_try(question.asker):
                return question
            question.refuse()
        return None

    def _take(self) -> BlockingTask:
        """Remove and return the next task: in turns from a user known by a right password, and from any other user."""
        self._count -= 1
        self._is_turn_of_others = not self._is_turn_of_others
        queues = (self._others, self._known) if self._is_turn_of_others else (self._known, self._others)
        return queues[0].take() if queues[0] else queues[1].take()

    def _may_try(self, asker: RequesterId) -> bool:
        keys = asker.names_here()
        if not all(self._by_name.may_try(key, self.listened_us) for key in keys):
            return False
        is_known = bool(keys) and all(key in self._right for key in keys)
        return is_known or self._by_address.may_try(asker.address, self.listened_us)

    def learn(self, asker: RequesterId, *, is_right: bool) -> None:
        """Record whether the passwords that *asker* gave were right, for the rate limits and the order of turns."""
        if is_right:
            self._was_right(asker)
        else:
            self._was_wrong(asker)

    def _was_wrong(self, asker: RequesterId) -> None:
        self._counters.wrong_passwords += 1
        self._by_address.count_failure(asker.address, self.listened_us)
        for key in asker.names_here():
            self._by_name.count_failure(key, self.listened_us)

    def _was_right(self, asker: RequesterId) -> None:
        """Remember that *asker* knows its passwords: the limit of its address as a whole no longer applies to it."""
        for key in asker.names_here():
            self._right.pop(key, None)
            self._right[key] = None
            if len(self._right) > _MAX_RIGHT:
                del self._right[next(iter(self._right))]


def _call_with(then: Callable[[_Answer, int], None], answer: object, now: int) -> None:
    then(answer, now)  # type: ignore[arg-type]  # the answer is what *ask* returned
