"""Blocking tasks: work that takes too long for the event loop, such as verifying a password.

The core queues a task; the shell runs it in a thread, a few at a time, and returns its result to the core.
Rule: addresses take turns, and within an address its users; users who gave a right password at their address before
have every other turn to themselves. Many wrong passwords make no other user wait for more than a few of them.
Rule: wrong passwords are counted for each user or session at each address, and for the address as a whole with a higher
limit; the latter does not concern users who gave a right password there before.
Rule: a task that is over its limit when its turn comes is refused without being run: a client that gave too many wrong
passwords meanwhile learns nothing from those that still wait.
Rule: a task whose client is gone is not run either: verifying a password takes most of a second, and clients that gave
up and came again must not wait behind themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from whimbrel.broker.limits.counters import Counters
from whimbrel.broker.limits.password_rate_limit import PasswordRateLimit, origin_of

__all__ = ["Asker", "BlockingTask", "BlockingTasks", "FairQueue"]

_NAMES_AT_AN_ADDRESS = 10
"""How many times as many wrong passwords one address may give for all names together as for one of them."""
_MAX_RIGHT = 10_000

_Answer = TypeVar("_Answer")
_T = TypeVar("_T")


class FairQueue(Generic[_T]):
    """Items of users at addresses, which take turns; putting and taking cost the same however many wait.

    An item waits behind one item of each other address, and within its address behind one of each other user, however
    many items they have put in. The items of one user of one address come in order.
    """

    def __init__(self) -> None:
        self._addresses: dict[str, dict[str, deque[_T]]] = {}
        """In the order of their turns, as are the users of each."""
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(self._counts.values())

    def __bool__(self) -> bool:
        return bool(self._counts)

    def waiting(self, address: str) -> int:
        """Return how many items of *address* wait."""
        return self._counts.get(address, 0)

    def put(self, address: str, user: str, item: _T) -> None:
        """Let *item* wait for its turn."""
        self._addresses.setdefault(address, {}).setdefault(user, deque()).append(item)
        self._counts[address] = self._counts.get(address, 0) + 1

    def take(self) -> _T:
        """Return the next item; there must be one."""
        address = next(iter(self._addresses))
        users = self._addresses.pop(address)
        user = next(iter(users))
        items = users.pop(user)
        item = items.popleft()
        if items:
            users[user] = items  # behind the other users
        if users:
            self._addresses[address] = users  # behind the other addresses
            self._counts[address] -= 1
        else:
            del self._counts[address]
        return item


class Asker(NamedTuple):
    """Who asks: the *address*, the *user* (or client) in whose turn, and the *names* whose passwords are tried."""

    address: str
    user: str
    names: tuple[str, ...] = ()

    def names_here(self) -> list[str]:
        """Return what wrong and right passwords are remembered by: each name at this address."""
        origin = origin_of(self.address)
        return [f"{origin}\0{name}\0" for name in self.names]  # never an address: it ends with U+0000


class BlockingTask:
    """One task: *ask* may run in any thread; *then*, which is given the time, and *refuse* are the core's."""

    __slots__ = ("ask", "asker", "is_wanted", "refuse", "then")

    def __init__(
        self,
        asker: Asker,
        ask: Callable[[], object],
        then: Callable[[object, int], None],
        refuse: Callable[[], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        self.asker, self.ask, self.then, self.refuse = asker, ask, then, refuse
        self.is_wanted = is_wanted


class BlockingTasks:
    """The blocking tasks of a broker; at most *most* wait, and half as many of one address."""

    def __init__(self, wrong_per_minute: int, counters: Counters, *, most: int) -> None:
        self._by_name = PasswordRateLimit(wrong_per_minute)
        self._by_address = PasswordRateLimit(wrong_per_minute * _NAMES_AT_AN_ADDRESS)
        self._counters, self._most = counters, most
        self._known: FairQueue[BlockingTask] = FairQueue()
        self._others: FairQueue[BlockingTask] = FairQueue()
        self._is_turn_of_others = False
        self._right: dict[str, None] = {}
        """Names at addresses that gave a right password, the latest last."""
        self._count = 0
        self.listened_us = 0
        """The time of ``Broker.end_silent``, which passes evenly: steps of a wall clock would give failures back."""

    def __len__(self) -> int:
        return self._count

    def is_full(self, address: str) -> bool:
        """Tell whether no more can wait, of *address* or at all."""
        origin = origin_of(address)
        waiting = self._known.waiting(origin) + self._others.waiting(origin)
        return self._count >= self._most or waiting >= max(1, self._most // 2)

    def put(
        self,
        asker: Asker,
        ask: Callable[[], _Answer],
        then: Callable[[_Answer, int], None],
        refuse: Callable[[], None],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Let a question wait for its turn; *refuse* is called instead if the *asker* has to wait when it comes.

        Where the result is not wanted by then (*is_wanted*), nothing is done.
        """
        question = BlockingTask(asker, ask, partial(_told, then), refuse, is_wanted)
        is_known = bool(asker.names) and all(key in self._right for key in asker.names_here())
        queue = self._known if is_known else self._others
        queue.put(origin_of(asker.address), asker.user, question)
        self._count += 1

    def next(self, listened_us: int) -> BlockingTask | None:
        """Return the next question to be asked, if there is one."""
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
        """Take from both queues in turns, where both have something."""
        self._count -= 1
        self._is_turn_of_others = not self._is_turn_of_others
        queues = (self._others, self._known) if self._is_turn_of_others else (self._known, self._others)
        return queues[0].take() if queues[0] else queues[1].take()

    def _may_try(self, asker: Asker) -> bool:
        keys = asker.names_here()
        if not all(self._by_name.may_try(key, self.listened_us) for key in keys):
            return False
        is_known = bool(keys) and all(key in self._right for key in keys)
        return is_known or self._by_address.may_try(asker.address, self.listened_us)

    def learn(self, asker: Asker, *, is_right: bool) -> None:
        """Note whether the passwords that were asked about were right."""
        if is_right:
            self._was_right(asker)
        else:
            self._was_wrong(asker)

    def _was_wrong(self, asker: Asker) -> None:
        self._counters.wrong_passwords += 1
        self._by_address.failed(asker.address, self.listened_us)
        for key in asker.names_here():
            self._by_name.failed(key, self.listened_us)

    def _was_right(self, asker: Asker) -> None:
        """Let these names try as they like: what others do at this address concerns them no more."""
        for key in asker.names_here():
            self._right.pop(key, None)
            self._right[key] = None
            if len(self._right) > _MAX_RIGHT:
                del self._right[next(iter(self._right))]


def _told(then: Callable[[_Answer, int], None], answer: object, now: int) -> None:
    then(answer, now)  # type: ignore[arg-type]  # the answer is what *ask* returned
