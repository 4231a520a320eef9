"""The controller: takes over discovery, matches, and tells devices how to page each other (Huang, chapter 4).

One pure core: ``core`` is the loop; ``arrivals`` is its queue, ``openings`` the events and their index, ``caches`` its
bounded caches, ``piconet`` the active slots, ``proofs/`` the conversations about membership, ``dumb`` the devices that
cannot receive messages.
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
