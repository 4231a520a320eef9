"""Counters: what the broker has done so far, for metrics and ``$SYS``."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters"]


@dataclass(slots=True)
class Counters:
    """Plain numbers that only grow; the mechanism adds to them and never asks who reads them."""

    connections: int = 0
    refused_connections: int = 0
    failed_handshakes: int = 0
    """Connections of TLS that broke the handshake, or took too long for it."""
    received: int = 0
    """Publications that clients sent."""
    refused: int = 0
    """Publications that were not accepted."""
    unwanted: int = 0
    """Publications of QoS 0 that no session wanted, and that the log left out for it (``[log] unwanted``)."""
    sent: int = 0
    """Copies that were written to clients."""
    missed_deadlines: int = 0
    """Copies that were sent when the deadline of their publication had passed."""
    foreign_places: int = 0
    """Bare properties place, radius and deadline of publications that are the application's: they do not parse."""
    reports: int = 0
    """Reports of devices that were taken in."""
    bad_reports: int = 0
    """Reports that could not be read."""
    receipts: int = 0
    expired: int = 0
    displaced: int = 0
    dropped: int = 0
    wrong_passwords: int = 0
    """Of users and of sessions."""
    protocol_errors: int = 0
    slow_readers: int = 0
    slowed_clients: int = 0
    """How often a client began to be slowed because it, or its user, sent more than a rate limit allows."""
    rate_pauses: int = 0
    """How often a connection was not read from for that."""
    filters_ended: int = 0
    """Subscriptions that were ended at the start, because their filter cannot be read any more."""
    transforms: int = 0
    """Bodies that were made for policies; equal ones are made once."""
    transforms_wanted: int = 0
    """Copies that such a body was wanted for."""
    bytes_received: int = 0
    bytes_sent: int = 0
    syncs: int = 0
