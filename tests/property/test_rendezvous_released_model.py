"""The controller without park under anything that can happen: the model of ``test_rendezvous_model``, other rules.

A released device is not connected. The controller pages it, one at a time; it may page the controller, walk away, or
be paged by the subscriber that was told to.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import invariant, rule
from test_rendezvous_model import CROWD, PARAMETERS, ControllerModel, who_

from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.controller import Command, Disconnected, Input, NotReached, Parameters
from whimbrel.rendezvous.controller.commands import Connect, Park, Poll, Release, Unpark
from whimbrel.rendezvous.events import Address

WITHOUT = Parameters(
    has_park=False,
    max_parked=0,
    max_active=PARAMETERS.max_active,
    max_released=7,
    presence_us=20_000_000,
    event_ttl_us=PARAMETERS.event_ttl_us,
    max_number=PARAMETERS.max_number,
    work=PARAMETERS.work,
    idle_us=PARAMETERS.idle_us,
)


class ReleasedModel(ControllerModel):
    """A radio without park, and a crowd; ``parked`` are the released devices."""

    parameters = WITHOUT

    def __init__(self) -> None:
        self.sought: dict[Address, int] = {}
        """Released publishers that a subscriber pages, and until when."""
        self.missed: dict[Address, int] = {}
        super().__init__()

    def perform(self, happened: tuple[Input, ...]) -> None:
        """Do one round; what the controller has forgotten listens in vain."""
        super().perform(happened)
        self.parked = {who for who in self.parked if self.core._state.piconet.get(who) is not None}

    def obey(self, command: Command) -> None:
        """Do what a radio without park does."""
        match command:
            case Park() | Unpark() | Poll():
                raise AssertionError(command)
            case Release(who):
                del self.active[who]
                self.parked.add(who)
            case Connect(who):
                assert who not in self.active
                assert self.sought.get(who, 0) <= self.now, "controller and subscriber page the same device"
                super().obey(command)
            case _:
                super().obey(command)

    def receive(self, who: Address, message: m.FromController) -> None:
        """Let a subscriber begin to page."""
        super().receive(who, message)
        if isinstance(message, m.Matched) and message.address in self.parked:
            assert message.address not in self.calling, "controller and subscriber page the same device"
            self.sought[message.address] = self.now + self.parameters.page_timeout_us

    def connect_now(self, who: Address, *, has_layer: bool) -> None:
        """Do what a page does; who is connected is sought no more."""
        super().connect_now(who, has_layer=has_layer)
        if who in self.active:
            self.sought.pop(who, None)

    @rule(who=who_)
    def leave(self, who: Address) -> None:
        """Lose a device; of one that is released nobody notices anything before it is paged."""
        self.active.pop(who, None)
        self.do(Disconnected(who))

    @rule(who=who_)
    def miss(self, who: Address) -> None:
        """Let a page not be answered."""
        if who in self.calling:
            self.calling.discard(who)
            self.do(NotReached(who))

    @rule(is_there=who_)
    def answer_pages(self, is_there: Address) -> None:
        """Let those that are paged answer, but for one."""
        for who in sorted(self.calling - {is_there}):
            self.connect_now(who, has_layer=True)

    def storm(self, *args: object, **options: object) -> None:
        """Leave it to ``leave``: a storm of the other model forgets parked devices."""

    @invariant()
    def one_released_device_is_paged_at_a_time(self) -> None:
        """Count the pages that go on."""
        assert len(self.calling & self.parked) <= 1

    @invariant()
    def who_is_released_is_paged_in_time(self) -> None:
        """Every released device has its next page, unless it is being paged or sought."""
        pager = self.core._state.piconet.pager
        for who in self.parked:
            assert pager.is_watched(who)


ReleasedModel.TestCase.settings = settings(settings.default, stateful_step_count=40)
TestReleasedController = ReleasedModel.TestCase


def test_the_crowd_is_larger_than_the_room() -> None:
    """Else the limits would never be reached."""
    assert len(CROWD) >= WITHOUT.max_members
