"""Web hosts: check the Host header of HTTP and WebSocket requests, against DNS rebinding.

The owner of a web page can make the page's host name resolve to 127.0.0.1 (DNS rebinding). The page's requests to a
broker on loopback then come from the reader's own machine, and their Origin is the host that they connect to. Only the
Host header, which has the page's host name, shows where they come from.
Rule: a port on loopback serves loopback names, and the names in the configuration. Other ports serve any name, unless
the configuration names some.
"""

from __future__ import annotations

import re
from ipaddress import ip_address

from whimbrel.broker.shell.net.http import BadRequestError, Request

__all__ = ["WebHosts", "is_loopback"]

_NAME = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]/?#@:, ]+))(?::[0-9]+)?")
_MISDIRECTED = 421


def is_loopback(host: str) -> bool:
    """Return whether *host* can be reached only from this machine; False for a name other than localhost."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


class WebHosts:
    """Host names that a port on *address* serves; *configured* are more names, separated by spaces, or ``*``."""

    def __init__(self, address: str, configured: str = "") -> None:
        names = {_without_end(each) for each in configured.lower().split()}
        self._answers_any = "*" in names or not (names or is_loopback(address))
        self._names = names | {_without_end(address.lower())}

    def check(self, request: Request) -> None:
        """Raise ``BadRequestError`` if the Host header of *request* names another host."""
        if self._answers_any:
            return
        found = _NAME.fullmatch(request.headers.get("host", "").lower())
        name = "" if found is None else _without_end(found[1] or found[2])
        if not (name in self._names or name.endswith(".localhost") or is_loopback(name)):
            raise BadRequestError(_MISDIRECTED, "this host is not served here; listen.web_hosts says which are")


def _without_end(name: str) -> str:
    """Return a host name without a final dot (the DNS root)."""
    return name.removesuffix(".")
