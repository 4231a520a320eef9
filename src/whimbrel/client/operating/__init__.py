"""What an operator asks of a broker over MQTT."""
