"""Counters of events since the start of the broker, for metrics, ``$SYS`` and the status."""

from __future__ import annotations

from dataclasses import dataclass

from whimbrel.broker.limits.figures import count

__all__ = ["Counters"]


@dataclass(slots=True)
class Counters:
    """Counters of a broker, for its metrics and its status: numbers that only grow."""

    connections: int = count("connections that were accepted", has_rate=True)
    refused_connections: int = count("connections that were refused", has_rate=True)
    failed_handshakes: int = count("TLS connections whose handshake failed or took too long")
    received: int = count("publications that clients sent", topic="messages/received", has_rate=True)
    refused: int = count("publications that were refused", has_rate=True)
    unwanted: int = count("publications of QoS 0 that no session wanted, left out of the log (`[log] unwanted`)")
    sent: int = count("copies that were written to clients", topic="messages/sent", has_rate=True)
    missed_deadlines: int = count("copies sent after the deadline of their publication", topic="deadlines/missed")
    foreign_places: int = count(
        "user properties place, radius and deadline that do not parse and are left to the application"
    )
    reports: int = count("reports of devices that were accepted")
    bad_reports: int = count("reports of devices that could not be read")
    receipts: int = count("receipts written to the log: what became of a notification at a session")
    expired: int = count("held notifications that expired")
    displaced: int = count(
        "held notifications dropped because a subscription holds more than its `max`", topic="publish/messages/dropped"
    )
    dropped: int = count(
        "copies dropped because a client reads too slowly", topic="publish/messages/dropped", has_rate=True
    )
    wrong_passwords: int = count("wrong passwords, of users and of sessions")
    protocol_errors: int = count("connections closed because the client broke the protocol")
    slow_readers: int = count("connections closed because the client took no bytes for `limits.slow_reader_s`")
    slowed_clients: int = count("times a client began to be slowed because it, or its user, exceeded a rate limit")
    rate_pauses: int = count("times a connection was not read from because of a rate limit", topic="pauses/rate")
    filters_ended: int = count("subscriptions ended at the start because their filter cannot be read any more")
    transforms: int = count("bodies made for policies; equal ones are made once")
    transforms_wanted: int = count("copies for which a policy wanted such a body")
    bytes_received: int = count("bytes that clients sent", topic="bytes/received", has_rate=True)
    bytes_sent: int = count("bytes that were written to clients", topic="bytes/sent", has_rate=True)
    syncs: int = count("times the log was written through to the disk (fsync)")
