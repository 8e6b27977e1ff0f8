"""Which application a client asks for, looked at when its whole ClientHello is there: the one step of a
handshake that both libraries are made to stop at."""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.server.net.quic.port import NoApplication


def watch_hello(context: Any, library: Any, choose: Callable[[Sequence[str]], str | None]) -> None:
    """Lets `choose` decide when the whole ClientHello is there, however many packets brought it. Both
    libraries have this code from one ancestor: they look the method up when they call it."""
    handle = type(context)._server_handle_hello

    def chosen(buffer: Any, *rest: Any) -> None:
        start = buffer.tell()
        hello = library.pull_client_hello(buffer)
        buffer.seek(start)
        try:
            name = choose(hello.alpn_protocols or ())
        except NoApplication:
            raise _refusal(library) from None
        context._alpn_protocols = None if name is None else [name]
        del context._server_handle_hello
        handle(context, buffer, *rest)

    context._server_handle_hello = chosen


def _refusal(library: Any) -> Exception:
    refusal: Exception = library.Alert("No application protocol in common")
    refusal.description = library.AlertDescription.no_application_protocol  # type: ignore[attr-defined]
    return refusal
