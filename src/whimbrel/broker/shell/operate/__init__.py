"""Operate: what an operator asks of a running broker: reload, status, health, metrics as topics, log lines."""
