"""Connect: CONNECT, DISCONNECT and wills; connections that are silent or read too slowly."""
