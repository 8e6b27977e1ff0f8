"""`penstock report`: what flows through the log, as one HTML page. Runs a Spark job over the log."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from penstock.cli.places import parse_place
from penstock.cli.target import Target, with_target

if TYPE_CHECKING:  # at run time only the command imports these: `penstock --help` stays quick
    from penstock.spark.report.facts import Groups

FLIGHT_PORT: Final = 8815
AUTO: Final = "auto"
TIMES_HELP: Final = "a time such as 2026-01-31T12:00, or -24h ago"


def register(app: typer.Typer) -> None:
    app.command("report")(with_target(report))


def report(
    target: Target,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The page to write.")
    ] = Path("report.html"),
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help=f"earliest, {TIMES_HELP}.")
    ] = "-24h",
    end: Annotated[
        str, typer.Option("--to", metavar="TIME", help=f"latest, {TIMES_HELP}.")
    ] = "latest",
    topic: Annotated[
        str, typer.Option("--topic", metavar="PATTERN", help="Only these, such as 'orders.*'.")
    ] = "",
    bucket: Annotated[
        str, typer.Option(help="Width of a bar in time: auto, 1s, 10s, 1m, 10m, 1h, 1d ...")
    ] = AUTO,
    flight: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help=f"Flight listener; port {FLIGHT_PORT} of the server if not given.",
        ),
    ] = None,
    master: Annotated[
        str | None, typer.Option(help="Master of a Spark cluster; this machine if not given.")
    ] = None,
) -> None:
    """Write a page about the traffic: volume, sizes, keys, lag, dead letters."""
    from penstock.spark.report.asking import Asked
    from penstock.spark.report.buckets import WIDTHS_S
    from penstock.spark.report.making import make_report

    if bucket != AUTO and bucket not in WIDTHS_S:
        known = ", ".join((AUTO, *WIDTHS_S))
        raise typer.BadParameter(f"--bucket {bucket!r}: expected one of {known}")
    now_us = time.time_ns() // 1000
    from_us = _time_us(start, "--from", "earliest", 0)
    to_us = _time_us(end, "--to", "latest", now_us)
    if to_us <= from_us:
        raise typer.BadParameter(f"--to {end} is not after --from {start}")
    asked = Asked(
        connection=_connection(target, flight),
        from_us=from_us,
        to_us=to_us,
        pattern=topic,
        bucket=None if bucket == AUTO else bucket,
    )
    made = make_report(asked, output, master=master, groups=lambda: groups(target, topic), say=_say)
    if made.groups.problem:
        _say(f"without the lag of groups: {made.groups.problem}")
    traffic = made.traffic
    topics = "1 topic" if traffic.topic_count == 1 else f"{traffic.topic_count:,} topics"
    what = f"{traffic.records:,} records of {topics}"
    _say(f"{output}: {what}, read in {made.job_s:.1f} s; open it in a browser")


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _time_us(text: str, option: str, word: str, meaning: int) -> int:
    place = parse_place(text, option)
    if place.word == word:
        return meaning
    if place.time_us is None:
        raise typer.BadParameter(f"{option} {text!r}: expected {word}, {TIMES_HELP}")
    return place.time_us


def _connection(target: Target, flight: str | None) -> dict[str, str]:
    """The options of format("penstock")."""
    target.require_no_user("Flight")
    if target.tls and target.insecure:
        raise typer.BadParameter("--insecure: Flight has no such option; give --ca")
    found = {"server": flight or _beside(target.http), "tls": str(target.tls).lower()}
    if target.login_key is not None:
        found["accessKey"] = target.login_key
    files = {"tlsCaFile": target.ca, "tlsCertificateFile": target.cert, "tlsKeyFile": None}
    if target.cert is not None:
        files["tlsKeyFile"] = target.cert_key or target.cert
    if target.tls:
        found |= {name: path for name, path in files.items() if path is not None}
    return found


def _beside(url: str) -> str:
    """Flight on the host of the HTTP API."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        host = ""
    if not host:
        raise typer.BadParameter(f"--http {url!r}: write a URL such as http://127.0.0.1:8080")
    return f"[{host}]:{FLIGHT_PORT}" if ":" in host else f"{host}:{FLIGHT_PORT}"


def groups(target: Target, pattern: str) -> "Groups":
    """Their lag now, over the HTTP API. Where that does not answer, the page says why."""
    from penstock.cli.http import ApiError
    from penstock.spark.report.facts import Groups

    try:
        return lag_of(target.api().list("groups"), pattern)
    except ApiError as error:
        return Groups(problem=str(error))


def lag_of(listed: Any, pattern: str = "") -> "Groups":
    """Of each group and topic; the largest lag first. With a pattern only of topics that fit it."""
    from penstock.spark.report.asking import fits
    from penstock.spark.report.facts import GroupLag, Groups
    from penstock.spark.report.limits import SHOWN_GROUPS

    count = 0
    found: list[GroupLag] = []
    for group in listed:
        topics: dict[str, list[int]] = {}
        for place in group["offsets"]:
            if not pattern or fits(place["topic"], pattern):
                topics.setdefault(place["topic"], []).append(place["lag"])
        count += bool(topics)
        committed_us = group.get("committed_us")
        for topic, lags in topics.items():
            found.append(
                GroupLag(group["name"], topic, len(lags), sum(lags), max(lags), committed_us)
            )
        if len(found) > 2 * SHOWN_GROUPS:
            found = _most(found, SHOWN_GROUPS)
    return Groups(count, tuple(_most(found, SHOWN_GROUPS)))


def _most(found: "list[Any]", number: int) -> "list[Any]":
    return sorted(found, key=lambda one: (-one.lag, one.group, one.topic))[:number]
