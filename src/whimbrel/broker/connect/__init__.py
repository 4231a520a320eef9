"""Connect: CONNECT, DISCONNECT, wills, keep-alive timeouts, and back-pressure for clients that read too slowly."""
