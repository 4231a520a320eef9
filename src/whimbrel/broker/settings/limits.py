"""The section ``[limits]`` of the configuration: bounds on sizes, rates and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from whimbrel.broker.settings import fields as setting
from whimbrel.broker.settings.fields import Section
from whimbrel.hold.private import PRIVATE
from whimbrel.model.bounds import INT32_MAX, INT64_MAX, MAX_NAME_BYTES
from whimbrel.mqtt.properties import MAX_USER_PROPERTIES

__all__ = ["MAX_CLIENT_ID_BYTES", "LimitSettings"]

MAX_CLIENT_ID_BYTES = MAX_NAME_BYTES - len(PRIVATE)
"""Longest client identifier in bytes: with a prefix it is the name of the client's private session in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings(Section):
    """Limits for one client, and for all clients together: connections, sizes, rates and memory."""

    section: ClassVar[str] = "limits"

    connections: int = setting.whole(20_000, 1, 1_000_000, "How many clients may be connected at a time.")
    packet_bytes: int = setting.whole(1_048_576, 1_024, 268_435_455, "The longest MQTT packet a client may send.")
    message_bytes: int = setting.whole(
        0, 0, 268_435_455, "The longest body of a publication; longer ones are refused.", note="0: as packet_bytes"
    )
    connect_timeout_s: float = setting.real(
        10, 0.1, 3_600, "How long a connection may take until its CONNECT is complete."
    )
    subscriptions_per_session: int = setting.whole(10_000, 1, 1_000_000, "How many subscriptions a session may have.")
    filter_bytes: int = setting.whole(
        16_384,
        1,
        setting.UINT16_MAX,
        "The longest filter of a subscription, its topic filter and its content filter each.",
    )
    filter_bytes_per_session: int = setting.whole(
        16_777_216, 1, INT64_MAX, "How many bytes the filters of all subscriptions of a session may have together."
    )
    pattern_instructions_per_session: int = setting.whole(
        50_000,
        0,
        INT64_MAX,
        "How many instructions the regular expressions and wildcards of all filters of a session may have together; "
        "on a notification they take as many steps for each byte that they look at, 1,000,000 a filter at most.",
    )
    pattern_instructions: int = setting.whole(
        2_000_000,
        0,
        INT64_MAX,
        "How many instructions the regular expressions and wildcards of all filters of all sessions may have together.",
        note="0: any number",
    )
    packet_work: int = setting.whole(
        50_000,
        1,
        INT32_MAX,
        "How many units of work one SUBSCRIBE or UNSUBSCRIBE may ask for: one for each topic filter, and for the "
        "content filter beside it one for each leaf, 16 for each pattern and one for each 64 bytes.",
    )
    session_work_per_second: int = setting.whole(
        20_000,
        0,
        INT32_MAX,
        "How many units of work a session may ask for in a second on average; at once it may ask for one packet's.",
        note="0: any number",
    )
    topic_bytes: int = setting.whole(4_096, 1, setting.UINT16_MAX, "The longest topic a client may publish to.")
    topic_levels: int = setting.whole(64, 1, 65_536, "How many levels a topic or a topic filter may have.")
    topic_alias_maximum: int = setting.whole(32, 0, setting.UINT16_MAX, "How many topic aliases a client may set.")
    receive_maximum: int = setting.whole(
        32, 1, setting.UINT16_MAX, "How many publications of QoS 1 and 2 a client may send before they are answered."
    )
    client_messages_per_second: int = setting.whole(
        0,
        0,
        INT32_MAX,
        "How many publications a client may send in a second; one that sends more is read from more slowly.",
        note="0: any number",
    )
    client_bytes_per_second: int = setting.whole(
        0, 0, INT64_MAX, "How many bytes a client may send in a second, in the same way.", note="0: any number"
    )
    user_messages_per_second: int = setting.whole(
        0,
        0,
        INT32_MAX,
        "How many publications all clients of one verified user may send in a second together; they take turns.",
        note="0: any number",
    )
    user_bytes_per_second: int = setting.whole(
        0,
        0,
        INT64_MAX,
        "How many bytes all clients of one verified user may send in a second together; they take turns.",
        note="0: any number",
    )
    rate_burst_s: float = setting.real(
        1, 0.01, 3_600, "How many seconds' worth of these rates may come at once, after a time of silence."
    )
    held_bytes: int = setting.whole(
        1_073_741_824, 0, INT64_MAX, "How many bytes of notifications are held in memory for all sessions together."
    )
    send_buffer_bytes: int = setting.whole(
        8_388_608,
        65_536,
        INT32_MAX,
        "How many bytes may wait in a client's connection; more waits its turn, of QoS 0 as much again at most.",
    )
    kernel_unsent_bytes: int = setting.whole(
        0,
        0,
        INT32_MAX,
        "How many bytes the kernel may keep for a client that it has not sent yet (TCP_NOTSENT_LOWAT). With few, the "
        "rest waits in the broker, where it can still be shaped or dropped; 16,384 suits slow links.",
        note="0: as many as the kernel likes, up to megabytes",
    )
    slow_reader_s: float = setting.real(
        60, 0.1, 86_400, "How long a client whose bytes wait may take none of them before it is cut off."
    )
    retained_messages: int = setting.whole(1_000_000, 0, INT32_MAX, "How many topics may have a retained message.")
    retained_bytes: int = setting.whole(
        536_870_912, 0, INT64_MAX, "How many bytes of memory all retained messages together may take."
    )
    private_sessions: int = setting.whole(
        1_000_000, 1, INT32_MAX, "How many clients may have a session, connected or away; more are refused."
    )
    memory_bytes: int = setting.whole(
        4_294_967_296,
        0,
        INT64_MAX,
        "How many bytes everything together may take: what is held and retained, wills, what waits in connections, "
        "packets that are not complete, subscriptions and sessions, by estimate; beyond it nothing new is kept.",
        note="0: any number",
    )
    client_id_bytes: int = setting.constant(
        setting.whole(256, 23, MAX_CLIENT_ID_BYTES, "The longest client identifier; MQTT asks for 23 at least.")
    )
    user_properties: int = setting.whole(64, 0, MAX_USER_PROPERTIES, "How many user properties one packet may have.")
