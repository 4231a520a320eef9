"""Sockets: listening, TLS, WebSocket and HTTP, and what one turn of the event loop reads and writes."""
