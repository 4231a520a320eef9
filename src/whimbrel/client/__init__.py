"""A small asyncio client for MQTT 5 and 3.1.1, with Whimbrel's content filters and named sessions."""

from whimbrel.client.answers import Device, SessionChange, SessionDetails, SessionSubscription, SessionSummary
from whimbrel.client.backoff import Backoff
from whimbrel.client.changes import SessionChanges
from whimbrel.client.client import Client
from whimbrel.client.device.policies import Policies, PolicySummary
from whimbrel.client.device.reporting import Reporting
from whimbrel.client.errors import (
    CannotConnectError,
    ClientClosedError,
    ClientError,
    ConnectRefusedError,
    DismissedError,
    MalformedAnswerError,
    PublishLostError,
    PublishRefusedError,
    RequestLostError,
    SessionRefusedError,
    SubscriptionRefusedError,
)
from whimbrel.client.joining import Join, Receipt
from whimbrel.client.link import Tls
from whimbrel.client.messages import Message, Payload
from whimbrel.client.operating.clients import Clients, ClientSummary
from whimbrel.client.sessions import Sessions
from whimbrel.hold.access import AccessControlList, Grant, Right
from whimbrel.mqtt.certificates import CertificateError
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import Will

__all__ = [
    "AccessControlList",
    "Backoff",
    "CannotConnectError",
    "CertificateError",
    "Client",
    "ClientClosedError",
    "ClientError",
    "ClientSummary",
    "Clients",
    "ConnectRefusedError",
    "Device",
    "DismissedError",
    "Grant",
    "Join",
    "MalformedAnswerError",
    "Message",
    "Payload",
    "Policies",
    "PolicySummary",
    "PublishLostError",
    "PublishRefusedError",
    "ReasonCode",
    "Receipt",
    "Reporting",
    "RequestLostError",
    "Right",
    "SessionChange",
    "SessionChanges",
    "SessionDetails",
    "SessionRefusedError",
    "SessionSubscription",
    "SessionSummary",
    "Sessions",
    "SubscriptionRefusedError",
    "Tls",
    "Will",
]
