"""The controller: discovers devices for others, matches them, and tells them how to page each other (Huang, chapter 4).

The core is pure: ``core`` is the loop, ``arrivals`` its queue, ``openings`` the events and their index, ``caches`` its
bounded caches, ``piconet`` the active slots. ``proofs/`` asks for proofs of membership, and ``dumb`` handles the
devices that cannot receive messages.
"""

from whimbrel.rendezvous.controller.commands import Command, Note, NoteKind
from whimbrel.rendezvous.controller.core import Controller
from whimbrel.rendezvous.controller.dumb import DumbPair, PairState
from whimbrel.rendezvous.controller.inputs import (
    Authenticated,
    Connected,
    Disconnected,
    Found,
    Input,
    NotReached,
    Overheard,
    Said,
    Timer,
)
from whimbrel.rendezvous.controller.parameters import Parameters

__all__ = [
    "Authenticated",
    "Command",
    "Connected",
    "Controller",
    "Disconnected",
    "DumbPair",
    "Found",
    "Input",
    "NotReached",
    "Note",
    "NoteKind",
    "Overheard",
    "PairState",
    "Parameters",
    "Said",
    "Timer",
]
