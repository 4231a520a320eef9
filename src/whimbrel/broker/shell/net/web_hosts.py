"""Web hosts: the names by which a browser may reach the ports for HTTP and WebSocket.

A web page can have its own name lead to 127.0.0.1 (DNS rebinding): its requests to a broker on loopback come from the
reader's machine and, by their Origin, from the same host. What gives them away is that name in the Host header.
Rule: a port on loopback answers loopback names, and those that the configuration names. Other ports answer any name,
unless the configuration names some.
"""

from __future__ import annotations

import re
from ipaddress import ip_address

from whimbrel.broker.shell.net.http import BadRequestError, Request

__all__ = ["WebHosts", "is_loopback"]

_NAME = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]/?#@:, ]+))(?::[0-9]+)?")
_MISDIRECTED = 421


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches *host*; a name that is not localhost may be reached by others."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


class WebHosts:
    """The names that the port on *address* answers; *configured* are names separated by spaces, or ``*``."""

    def __init__(self, address: str, configured: str = "") -> None:
        names = {_without_end(each) for each in configured.lower().split()}
        self._answers_any = "*" in names or not (names or is_loopback(address))
        self._names = names | {_without_end(address.lower())}

    def check(self, request: Request) -> None:
        """Raise ``BadRequestError`` if *request* is for another host."""
        if self._answers_any:
            return
        found = _NAME.fullmatch(request.headers.get("host", "").lower())
        name = "" if found is None else _without_end(found[1] or found[2])
        if not (name in self._names or name.endswith(".localhost") or is_loopback(name)):
            raise BadRequestError(_MISDIRECTED, "this host is not served here; listen.web_hosts says which are")


def _without_end(name: str) -> str:
    """Return a name without the dot of the root, which may end it."""
    return name.removesuffix(".")
