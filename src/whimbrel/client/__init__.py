"""A small asyncio client for MQTT 5 and 3.1.1, with Whimbrel's content filters."""

from whimbrel.client.backoff import Backoff
from whimbrel.client.client import Client
from whimbrel.client.errors import (
    CannotConnectError,
    ClientClosedError,
    ClientError,
    ConnectRefusedError,
    DismissedError,
    PublishLostError,
    PublishRefusedError,
    SubscriptionRefusedError,
)
from whimbrel.client.messages import Message, Payload
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import Will

__all__ = [
    "Backoff",
    "CannotConnectError",
    "Client",
    "ClientClosedError",
    "ClientError",
    "ConnectRefusedError",
    "DismissedError",
    "Message",
    "Payload",
    "PublishLostError",
    "PublishRefusedError",
    "ReasonCode",
    "SubscriptionRefusedError",
    "Will",
]
