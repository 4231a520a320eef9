"""Connections: CONNECT, DISCONNECT and wills."""
