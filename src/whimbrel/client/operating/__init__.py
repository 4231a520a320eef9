"""Requests of operators to a broker over MQTT."""
