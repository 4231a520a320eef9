"""The backbone of a campus: way-servers and the administrative server, joined by our own broker (Campus++, 3.1)."""
