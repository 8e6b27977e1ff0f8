"""Which server a command talks to: flags, a named context, the environment, defaults, in this order.

    --server    PENSTOCK_SERVER   127.0.0.1:9092          the wire protocols
    --http      PENSTOCK_HTTP     http://127.0.0.1:8080   the HTTP API
    --key       PENSTOCK_KEY      dev-key                 the API key, or the password of the user
    --user      PENSTOCK_USER     none                    log in as a user (HTTP API, FlyMQ)
    --context   PENSTOCK_CONTEXT  the one `penstock context use` chose
    --cert, --cert-key            none                    a certificate of one's own, for TLS and https
    --insecure                    no                      any certificate of the server will do

Felix and Fujin are on QUIC: without --server at PENSTOCK_QUIC, else on port 4848 of the same host.

A context that a flag names stands above the environment, the one in use stands below it.
`with_target` gives a command all these options. Opens no connections.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.contexts import Context, load
from penstock.cli.environment import (
    CONTEXT_VARIABLE,
    HTTP_VARIABLE,
    KEY_VARIABLE,
    QUIC_VARIABLE,
    SERVER_VARIABLE,
    USER_VARIABLE,
)
from penstock.cli.options import with_options
from penstock.errors import PenstockError

if TYPE_CHECKING:  # at run time only the commands import these: `penstock --help` stays quick
    import ssl

    from penstock.cli.http import Api
    from penstock.client.settings import ClientSettings

DEFAULT_SERVER: Final = "127.0.0.1:9092"
DEFAULT_HTTP: Final = "http://127.0.0.1:8080"
# What a server accepts that nobody has configured.
DEFAULT_KEY: Final = "dev-key"
DEFAULT_TIMEOUT_S: Final = 10.0

_PANEL: Final = "Which server"
# Arguments that may be any bytes: what is sent or printed, and names of files. All others are names of
# things, and those are UTF-8 everywhere.
_ANY_BYTES: Final = frozenset({"message", "message_key", "header", "template", "file", "data"})


class UnusableTrust(PenstockError):
    """`path`: the file with the certificates to trust, None for those of the system."""

    path: str | None
    reason: str

    def __str__(self) -> str:
        return f"--ca {self.path}: {self.reason}" if self.path else f"certificates: {self.reason}"


class UnusableCertificate(PenstockError):
    cert: str
    cert_key: str | None
    reason: str

    def __str__(self) -> str:
        key = f" --cert-key {self.cert_key}" if self.cert_key else ""
        return f"--cert {self.cert}{key}: {self.reason}"


def _no_password() -> str:
    raise ValueError("the key is encrypted; give one without a password")


@dataclass(frozen=True, slots=True)
class Target:
    """`ca`: a file with the certificates to trust, else those of the system."""

    server: str
    http: str
    key: str
    tls: bool
    ca: str | None
    timeout_s: float
    # Whether the key came by --key: then it is an error if the protocol has no use for it.
    key_flag: bool = False
    # Whether `http` is that of `server`: it was named, or neither was.
    same_server: bool = True
    # Whose password the key is; None: it is an API key.
    user: str | None = None
    # Files of a client's own certificate and its private key; None: it is in the same file.
    cert: str | None = None
    cert_key: str | None = None
    # Whether the key was named anywhere: with a certificate, none need be.
    key_given: bool = True
    insecure: bool = False
    # Where QUIC is; None: on its port of the server's host.
    quic: str | None = None

    def __repr__(self) -> str:
        return f"Target({self.server}, {self.http})"

    def settings(self, attempts: int | None = 0) -> "ClientSettings":
        from penstock.client.settings import ClientSettings, parse_server

        try:
            parse_server(self.server)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        context = self._trust() if self.tls else None
        return ClientSettings(timeout_s=self.timeout_s, attempts=attempts, tls=context)

    @property
    def quic_server(self) -> str:
        """Of Felix and Fujin."""
        from penstock.client.quic.connection import DEFAULT_QUIC_PORT
        from penstock.client.settings import ServerAddress, parse_server

        try:
            if self.quic is not None:
                return str(parse_server(self.quic, DEFAULT_QUIC_PORT))
            host = parse_server(self.server).host
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        return str(ServerAddress(host, DEFAULT_QUIC_PORT))

    def quic_options(self, attempts: int | None = 0) -> "dict[str, Any]":
        """Settings and trust of the clients on QUIC, which is always encrypted."""
        from penstock.client.quic.trust import QuicTrust
        from penstock.client.settings import ClientSettings

        if self.cert is not None:
            raise typer.BadParameter("--cert: QUIC asks for no certificates of clients")
        return {
            "settings": ClientSettings(timeout_s=self.timeout_s, attempts=attempts),
            "trust": QuicTrust(ca=self.ca, insecure=self.insecure),
        }

    @property
    def login_key(self) -> str | None:
        """The key to log in with; None where the certificate does that."""
        return self.key if self.key_given or self.cert is None else None

    def require_no_key(self, protocol: str) -> None:
        """Refuses --key for a protocol without a login, where nobody would notice a wrong key."""
        if self.key_flag:
            raise typer.BadParameter(f"--key: {protocol} has no login, leave the key out")

    def require_no_user(self, protocol: str) -> None:
        """Refuses a user for a protocol that knows API keys alone."""
        if self.user is not None:
            raise typer.BadParameter(
                f"--user: {protocol} has no users; give an API key, or --protocol flymq"
            )

    def api(self) -> "Api":
        from penstock.cli.http import Api

        trust = self._trust() if self.http.startswith("https:") else None
        return Api(self.http, self.login_key, self.timeout_s, trust, self.user)

    def _trust(self) -> "ssl.SSLContext":
        import ssl

        try:
            context = ssl.create_default_context(cafile=self.ca)
        except ssl.SSLError:
            raise UnusableTrust(self.ca, "no certificate in PEM form is in it") from None
        except OSError as error:
            raise UnusableTrust(self.ca, error.strerror or str(error)) from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert is not None:
            self._load_own(context, self.cert)
        return context

    def _load_own(self, context: "ssl.SSLContext", cert: str) -> None:
        import ssl

        try:
            # Without this OpenSSL would ask for a password on the terminal.
            context.load_cert_chain(cert, self.cert_key, password=_no_password)
        except ssl.SSLError as error:
            reason = "certificate and key in PEM form, which belong together, are expected"
            raise UnusableCertificate(cert, self.cert_key, error.reason or reason) from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise UnusableCertificate(cert, self.cert_key, reason) from None
        except ValueError as error:
            raise UnusableCertificate(cert, self.cert_key, str(error)) from None


def resolve(
    flags: Mapping[str, Any], environment: Mapping[str, str], contexts_path: str | None = None
) -> Target:
    for name in ("server", "http", "key", "user", "context", "ca", "cert", "cert_key"):
        if flags.get(name) == "":
            option = name.replace("_", "-")
            raise typer.BadParameter(f"--{option} is empty; leave it out, or give a value")
    contexts, current = load(contexts_path)
    named = flags.get("context")
    chosen = named or environment.get(CONTEXT_VARIABLE) or current
    context = Context() if not chosen else contexts.find(chosen)

    def pick(name: str, variable: str, default: str) -> str:
        stored = getattr(context, name)
        given = environment.get(variable)
        order = (stored, given) if named else (given, stored)
        return str(flags.get(name) or order[0] or order[1] or default)

    def named_any(name: str, variable: str) -> bool:
        return bool(flags.get(name) or environment.get(variable) or getattr(context, name))

    cert = flags.get("cert") or context.cert
    cert_key = flags.get("cert_key") or (None if flags.get("cert") else context.cert_key)
    if cert_key is not None and cert is None:
        raise typer.BadParameter("--cert-key needs --cert, the certificate that it belongs to")
    return Target(
        server=pick("server", SERVER_VARIABLE, DEFAULT_SERVER),
        http=pick("http", HTTP_VARIABLE, DEFAULT_HTTP),
        key=pick("key", KEY_VARIABLE, DEFAULT_KEY),
        tls=bool(flags.get("tls") or context.tls or flags.get("cert") or context.cert),
        ca=flags.get("ca") or context.ca,
        timeout_s=flags.get("timeout") or DEFAULT_TIMEOUT_S,
        key_flag=flags.get("key") is not None,
        same_server=named_any("http", HTTP_VARIABLE) or not named_any("server", SERVER_VARIABLE),
        user=flags.get("user") or environment.get(USER_VARIABLE) or None,
        cert=cert,
        cert_key=cert_key,
        key_given=named_any("key", KEY_VARIABLE),
        insecure=bool(flags.get("insecure")),
        quic=flags.get("server") or environment.get(QUIC_VARIABLE) or None,
    )


def _option(
    kind: Any, name: str, metavar: str | None, help_text: str, least: float | None = None
) -> Any:
    option = typer.Option(name, metavar=metavar, help=help_text, rich_help_panel=_PANEL, min=least)
    return Annotated[kind, option]


_OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "server": (
        _option(
            str | None, "--server", "HOST:PORT", f"Wire protocols, {DEFAULT_SERVER} if not given."
        ),
        None,
    ),
    "http": (_option(str | None, "--http", "URL", f"HTTP API, {DEFAULT_HTTP} if not given."), None),
    "key": (
        _option(
            str | None, "--key", "KEY", f"API key; better in {KEY_VARIABLE}, which nobody sees."
        ),
        None,
    ),
    "user": (
        _option(str | None, "--user", "NAME", "Log in as this user; the key is the password."),
        None,
    ),
    "context": (_option(str | None, "--context", "NAME", "See penstock context."), None),
    "tls": (_option(bool, "--tls", None, "Wire protocols over TLS."), False),
    "ca": (
        _option(str | None, "--ca", "FILE", "Certificates to trust, for TLS, https and QUIC."),
        None,
    ),
    "insecure": (
        _option(bool, "--insecure", None, "Trust any certificate: TLS, https and QUIC."),
        False,
    ),
    "cert": (
        _option(
            str | None, "--cert", "FILE", "Own certificate to show; with TLS, which it switches on."
        ),
        None,
    ),
    "cert_key": (
        _option(str | None, "--cert-key", "FILE", "Its private key, if not in the same file."),
        None,
    ),
    "timeout": (
        _option(float, "--timeout", "SECONDS", "The longest wait for any answer.", 0.001),
        DEFAULT_TIMEOUT_S,
    ),
}


def with_target(command: Callable[..., None]) -> Callable[..., None]:
    """A command with a parameter `target`, and the options above instead of it."""

    @wraps(command)
    def checked(target: Target, **values: Any) -> None:
        require_utf8([target.server, target.http])
        require_utf8([target.key], "the API key")
        require_utf8([target.user or ""])
        for name, value in values.items():
            if name not in _ANY_BYTES:
                require_utf8(value if isinstance(value, list) else [value])
        command(target, **values)

    return with_options(checked, "target", _OPTIONS, lambda flags: resolve(flags, os.environ))


def require_utf8(values: list[Any], shown_as: str | None = None) -> None:
    """The system hands over bytes that are no UTF-8 as lone surrogates, which nothing can send."""
    for value in values:
        try:
            str(value).encode()
        except UnicodeEncodeError:
            shown = shown_as or os.fsencode(value).decode("utf-8", "backslashreplace")
            raise typer.BadParameter(f"{shown} is not UTF-8") from None
