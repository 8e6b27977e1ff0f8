"""Refuses requests that a browser sent for a page of another site, and requests for another host.

A page on another origin whose name is made to resolve to this machine (DNS rebinding) reaches the server as
if it were its own. Such a request carries the page's host name in `Host`. So the names of this server are:
loopback names, the address that the connection came to, the address of the listener, and `http.hosts`.
Changes are also refused when the browser says that another site asks (`Sec-Fetch-Site`, `Origin`).
"""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from penstock.broker.errors import BrokerError, Code

ANY_HOST: Final = "*"
LOCAL_NAME: Final = "localhost"
MISDIRECTED_STATUS: Final = 421
# They change nothing.
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# What a browser says of requests of this server's own pages, and of those that the user typed.
OWN_SITE: Final = frozenset({"same-origin", "none"})
# Names in texts are cut: they come from strangers.
MAX_SHOWN: Final = 80


class Misdirected(BrokerError):
    """The request is for another server."""

    def __init__(self, host: str) -> None:
        text = (
            f"{host[:MAX_SHOWN]!r} is no name of this server; use localhost or its address, "
            "or add the name to http.hosts"
        )
        super().__init__(Code.INVALID_REQUEST, text)


def check_host(request: Request, names: Sequence[str]) -> None:
    """Raises Misdirected. `names`: of the configuration, and the address of the listener. Without a Host
    (HTTP/1.0) no browser has sent it."""
    header = request.headers.get("Host")
    if header is None or ANY_HOST in names:
        return
    host = _without_port(header).lower().rstrip(".")
    server = request.scope.get("server") or ("",)
    known = {LOCAL_NAME, _plain(str(server[0])), *(name.lower() for name in names)}
    if host not in known and not _is_loopback(host):
        raise Misdirected(header)


def check_origin(request: Request) -> None:
    """Raises BrokerError when a page of another site asks for a change."""
    if request.method in SAFE_METHODS:
        return
    site = request.headers.get("Sec-Fetch-Site", "none")
    origin = request.headers.get("Origin")
    foreign = origin is not None and _authority(origin) != request.headers.get("Host", "").lower()
    if site not in OWN_SITE or foreign:
        text = "a page of another site asks for this change; ask from a page of this server"
        raise BrokerError(Code.NOT_AUTHORIZED, text)


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _without_port(header: str) -> str:
    """The host alone; IPv6 addresses without their brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _plain(host: str) -> str:
    return host.removeprefix("::ffff:")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
