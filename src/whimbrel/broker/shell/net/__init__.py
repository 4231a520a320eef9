"""Network: listeners, TLS, WebSocket and HTTP; reading and writing of sockets in each turn of the event loop."""
