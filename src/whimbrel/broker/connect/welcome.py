"""CONNACK for an accepted client, with the keep alive and session expiry that the broker grants (MQTT 5, 3.2)."""

from __future__ import annotations

from whimbrel.broker.settings.config import Config
from whimbrel.broker.wire.clients import Link
from whimbrel.model.clock import US_PER_S
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V5, Connack, Connect
from whimbrel.mqtt.properties import Properties, Property

__all__ = ["Welcome"]

_QOS_2 = 2


class Welcome:
    """Builds CONNACKs from the broker's configuration."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def packet(self, link: Link, connect: Connect, assigned: str | None, *, is_resumed: bool) -> bytes | None:
        """Return the CONNACK for a client, or None if it is longer than the client's packet limit [MQTT-3.1.2-24].

        The properties of a CONNACK are limits that the client must respect. So only one may be omitted to shorten it:
        without a topic alias maximum the client may not use aliases (3.2.2.3.8).
        """
        told, most, version = self._properties(connect, assigned), link.machine.max_packet_bytes, link.machine.version
        data = encode(Connack(is_resumed, ReasonCode.SUCCESS, Properties(told)), version)
        if most and len(data) > most:
            told.pop(Property.TOPIC_ALIAS_MAXIMUM, None)
            data = encode(Connack(is_resumed, ReasonCode.SUCCESS, Properties(told)), version)
        return None if most and len(data) > most else data

    def _properties(self, connect: Connect, assigned: str | None) -> dict[Property, object]:
        """Return the properties of CONNACK; version 3.1.1 has none."""
        if connect.version != V5:
            return {}
        limits, mqtt = self._config.limits, self._config.mqtt
        keep_alive_s, expiry_us = self.keep_alive_s(connect), self.expiry_us(connect)
        told: dict[Property, object] = {
            Property.RECEIVE_MAXIMUM: limits.receive_maximum,
            Property.MAXIMUM_PACKET_SIZE: limits.packet_bytes,
        }
        if limits.topic_alias_maximum:
            told[Property.TOPIC_ALIAS_MAXIMUM] = limits.topic_alias_maximum
        if mqtt.maximum_qos < _QOS_2:
            told[Property.MAXIMUM_QOS] = mqtt.maximum_qos
        if not mqtt.retain_available:
            told[Property.RETAIN_AVAILABLE] = 0
        if assigned is not None:
            told[Property.ASSIGNED_CLIENT_IDENTIFIER] = assigned
        if keep_alive_s != connect.keep_alive_s:
            told[Property.SERVER_KEEP_ALIVE] = keep_alive_s
        if expiry_us != (connect.properties.integer(Property.SESSION_EXPIRY_INTERVAL) or 0) * US_PER_S:
            told[Property.SESSION_EXPIRY_INTERVAL] = expiry_us // US_PER_S
        return told

    def keep_alive_s(self, connect: Connect) -> int:
        """Return the client's keep alive in seconds: the requested one; for version 5, at most the configured one."""
        most, asked = self._config.mqtt.keep_alive_s, connect.keep_alive_s
        if connect.version != V5 or not most:
            return asked
        return min(asked, most) if asked else most

    def expiry_us(self, connect: Connect) -> int:
        """Return how long a client's session outlives its connection, in microseconds."""
        most = self._config.mqtt.session_expiry_s
        if connect.version != V5:
            return 0 if connect.clean_start else most * US_PER_S
        return min(connect.properties.integer(Property.SESSION_EXPIRY_INTERVAL) or 0, most) * US_PER_S
