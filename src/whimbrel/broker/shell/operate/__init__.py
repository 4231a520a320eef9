"""Operate: reload, status, health, system topics and log lines of a running broker, for its operator."""
