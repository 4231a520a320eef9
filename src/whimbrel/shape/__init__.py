"""Shaping of deliveries for each device: device state, policy decisions and transforms of bodies (SUBLIM)."""

from whimbrel.shape.agents import Agents, admit
from whimbrel.shape.decision import Decision, decide, decision_fact, finish
from whimbrel.shape.faults import Fault
from whimbrel.shape.state import PolicyVersion, ShapeState

__all__ = [
    "Agents",
    "Decision",
    "Fault",
    "PolicyVersion",
    "ShapeState",
    "admit",
    "decide",
    "decision_fact",
    "finish",
]
