"""Broker: the live service, which any MQTT client can use."""
