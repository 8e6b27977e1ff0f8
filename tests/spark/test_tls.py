"""The data source with a server that speaks TLS, and one that also wants a certificate of its clients."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kit.echo_server import Certificate, make_certificate
from kit.limits import HANG_S
from kit.live_server import LiveServer
from spark.conftest import FLIGHT, KEY, KEY_VARIABLE, address, numbers, run_now, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRIES = {"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "20"}


@dataclass(frozen=True)
class Secured:
    """One server takes everybody with a key, the other only clients whose certificate `own` has signed."""

    tls: str
    mutual: str
    server: Certificate
    own: Certificate
    key_file: str
    not_pem: str


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    room = tmp_path_factory.mktemp("secured")
    for name in ("server", "own"):
        (room / name).mkdir()
    server, own = make_certificate(room / "server"), make_certificate(room / "own")
    (room / "key").write_text(f"{KEY}\n")
    (room / "not.pem").write_text("not a certificate\n")
    flags = {**FLIGHT, "tls.certificate": server.certificate, "tls.key": server.key}
    with (
        LiveServer(room / "tls", flags) as one,
        LiveServer(room / "mutual", {**flags, "tls.client_ca": own.certificate}) as two,
    ):
        yield Secured(
            address(one), address(two), server, own, str(room / "key"), str(room / "not.pem")
        )


def test_batches_with_a_key_from_a_file(spark: "SparkSession", secured: Secured) -> None:
    given = {"server": secured.tls, "tlsCaFile": secured.server.certificate}
    given["keyFile"] = secured.key_file
    frame = spark.createDataFrame([(one,) for one in numbers(0, 3)], "value BINARY")
    writer = frame.write.format("penstock").options(**given, topic="t", createTopics="true")
    writer.mode("append").save()
    found = spark.read.format("penstock").options(**given, subscribe="t").load()
    assert values(found) == numbers(0, 3)


def test_a_stream_with_a_certificate_of_its_own(
    spark: "SparkSession", secured: Secured, tmp_path: Path
) -> None:
    given = {
        "server": secured.mutual,
        "tlsCaFile": secured.server.certificate,
        "tlsCertificateFile": secured.own.certificate,
        "tlsKeyFile": secured.own.key,
        "keyEnv": KEY_VARIABLE,
    }
    frame = spark.range(5).selectExpr("CAST(id AS STRING) AS value")
    writer = frame.write.format("penstock").options(**given, topic="from", createTopics="true")
    writer.mode("append").save()
    read = {**given, "subscribe": "from", "startingOffsets": "earliest"}
    source = spark.readStream.format("penstock").options(**read).load().select("value")
    run_now(source, tmp_path, "penstock", **given, topic="to", createTopics="true")
    found = spark.read.format("penstock").options(**given, subscribe="to").load()
    assert values(found) == [b"0", b"1", b"2", b"3", b"4"]
    secrets = [Path(secured.own.key).read_bytes(), KEY.encode()]
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not [one for one in files for secret in secrets if secret in one]


CA, WRONG_CA = {"tlsCaFile": "server.certificate"}, {"tlsCaFile": "own.certificate"}


@pytest.mark.parametrize(
    ("server", "files", "complaint"),
    [
        ("tls", WRONG_CA, "cannot connect to .*certificate verify failed"),
        ("mutual", WRONG_CA, "cannot connect to .*certificate verify failed"),
        ("tls", {}, "cannot connect to .*"),
        ("mutual", CA, "cannot connect to .*"),
        (
            "mutual",
            CA | {"tlsCertificateFile": "server.certificate", "tlsKeyFile": "server.key"},
            "cannot connect to .*",
        ),
        ("tls", {"tlsCaFile": "not_pem"}, "option tlsCaFile: holds no certificate"),
        (
            "mutual",
            CA | {"tlsCertificateFile": "own.certificate", "tlsKeyFile": "server.key"},
            "option tlsKeyFile: is the key of another certificate",
        ),
        (
            "mutual",
            CA | {"tlsCertificateFile": "own.certificate", "tlsKeyFile": "not_pem"},
            "option tlsCertificateFile: cannot be used with tlsKeyFile",
        ),
    ],
)
def test_no_trust(
    spark: "SparkSession", secured: Secured, server: str, files: dict[str, str], complaint: str
) -> None:
    given = {"server": getattr(secured, server), "accessKey": KEY, "subscribe": "t", **TRIES}
    for option, what in files.items():
        whose, _, which = what.partition(".")
        found = getattr(secured, whose)
        given[option] = getattr(found, which) if which else found
    began = time.monotonic()
    with pytest.raises(Exception, match=complaint):
        spark.read.format("penstock").options(**given).load().collect()
    assert time.monotonic() - began < HANG_S
