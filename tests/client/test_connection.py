"""TLS where the other side has none, and the other way round; and what was published until the end."""

import ssl
from pathlib import Path

import pytest
from client.peer import BlipMQPeer, Peer, Script, Waits, answers, closes, run
from kit.echo_server import make_certificate
from kit.limits import HANG_S

from penstock.client.blipmq import BlipMQClient
from penstock.client.connection import TLS_ALERT
from penstock.client.errors import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    ProtocolViolation,
    PublishRefused,
)
from penstock.client.rustlog import RustLogClient
from penstock.client.settings import ClientSettings
from penstock.client.tally import Tally
from penstock.wire.blipmq import frames as wire

KINDS = (BlipMQClient, RustLogClient)


async def ping(kind: type[BlipMQClient] | type[RustLogClient], peer: Peer, tls: bool) -> str:
    """The text of the error that comes."""
    context = ssl.create_default_context() if tls else None
    settings = ClientSettings(timeout_s=HANG_S, attempts=0, tls=context)
    with pytest.raises(ClientError) as caught:
        async with kind(peer.address, settings=settings) as client:
            await client.ping()
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("script", "words"),
    [
        (closes(), "it closed the TLS handshake; does it speak TLS?"),
        (closes(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "no TLS came about (wrong version number)"),
    ],
)
def test_tls_to_a_server_without(
    kind: type[BlipMQClient] | type[RustLogClient], script: Script, words: str
) -> None:
    async def main() -> str:
        async with Peer(script) as peer:
            return await ping(kind, peer, tls=True)

    text = run(main())
    assert text.startswith("cannot connect to 127.0.0.1:") and words in text
    assert text.endswith("does it speak TLS?")


@pytest.mark.parametrize("kind", KINDS)
def test_plain_to_a_server_with_tls(
    kind: type[BlipMQClient] | type[RustLogClient], tmp_path: Path
) -> None:
    certificate = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)

    async def main() -> str:
        async with Peer(closes(), tls=context) as peer:
            return await ping(kind, peer, tls=False)

    assert run(main()).endswith("; does it expect TLS (--tls)?")


@pytest.mark.parametrize("kind", KINDS)
def test_a_tls_alert(kind: type[BlipMQClient] | type[RustLogClient]) -> None:
    async def main() -> str:
        async with Peer(answers(TLS_ALERT + b"\x03\x00\x02\x02\x46")) as peer:
            return await ping(kind, peer, tls=False)

    assert run(main()).endswith(
        "sent bytes that break the protocol: a TLS alert; does it expect TLS (--tls)?"
    )


def test_a_server_that_has_spoken_is_not_asked_for_tls() -> None:
    async def main() -> None:
        blipmq = BlipMQPeer()
        blipmq.cut_at.add(b"cut")
        settings = Waits().settings(attempts=0)
        async with (
            Peer(blipmq.script) as peer,
            BlipMQClient(peer.address, key="secret", settings=settings) as client,
        ):
            await client.publish("demo", b"cut")
            with pytest.raises(ConnectionLost) as caught:
                await client.flush()
            assert "TLS" not in str(caught.value)
        with pytest.raises(ConnectFailed) as refused:
            await BlipMQClient(peer.address, settings=settings).__aenter__()
        assert "TLS" not in str(refused.value)

    run(main())


def test_garbage_is_no_alert() -> None:
    async def main() -> None:
        settings = Waits().settings(attempts=0)
        async with Peer(answers(b"\xff" * 64)) as peer:
            with pytest.raises(ProtocolViolation) as caught:
                await BlipMQClient(peer.address, settings=settings).__aenter__()
        assert "TLS" not in str(caught.value)

    run(main())


def test_what_became_of_the_messages() -> None:
    async def main() -> None:
        blipmq = BlipMQPeer()
        blipmq.refused[b"bad"] = wire.Nack(500, "no")
        blipmq.cut_at.add(b"cut")
        async with (
            Peer(blipmq.script) as peer,
            BlipMQClient(peer.address, key="secret", settings=Waits().settings()) as client,
        ):
            assert client.tally == Tally()
            await client.publish_many("demo", [b"a", b"bad", b"b"])
            with pytest.raises(PublishRefused):
                await client.flush()
            assert client.tally == Tally(published=3, confirmed=2, refused=1)
            await client.publish("demo", b"bad")
            await client.ping()  # the refusal has arrived before its answer
            await client.publish_many("demo", [b"c", b"cut"])
            with pytest.raises(ConnectionLost) as caught:
                await client.flush()
            assert caught.value.unconfirmed == 2
            assert client.tally == Tally(published=6, confirmed=2, refused=2)
            assert client.tally.unanswered == 2
            await client.publish("demo", b"d")
            with pytest.raises(PublishRefused):  # of before the loss: it was not told yet
                await client.flush()
            assert client.tally == Tally(published=7, confirmed=3, refused=2)

    run(main())
