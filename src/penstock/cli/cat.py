"""`penstock cat TOPIC`: the records that are there now, from a place on, and then the end.

Reads over the HTTP API, page by page, up to the end as it was at the start. Live: `penstock sub`.
"""

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.output import Record, formatter, standard_output
from penstock.cli.places import Place, parse_place
from penstock.cli.target import Target, with_target

if TYPE_CHECKING:  # at run time only the commands import these: `penstock --help` stays quick
    from penstock.cli.http import Api

# One page: quick to answer, and few enough calls.
PAGE_RECORDS: Final = 5_000
PAGE_BYTES: Final = 4 * 1024 * 1024


def register(app: typer.Typer) -> None:
    app.command("cat")(with_target(cat))


def cat(
    target: Target,
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=0, help="At most so many records.")
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="PLACE", help="earliest, latest, an offset, -N (the last N), a time."
        ),
    ] = "earliest",
    partition: Annotated[
        int | None, typer.Option("-p", "--partition", min=0, help="Only this one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    template: Annotated[
        str | None, typer.Option("--format", help=r"Such as '%o %v\n'; %t %p %o %T %k %v %S %h.")
    ] = None,
) -> None:
    """Print the records of a topic that are there now."""
    from penstock.cli.topic import find_topic

    place = parse_place(start, "--from")
    write_as = formatter(as_json, template)
    api = target.api()
    details = find_topic(api, topic)["partition_details"]
    if partition is not None:
        details = [one for one in details if one["partition"] == partition]
        if not details:
            raise typer.BadParameter(f"{topic} has no partition {partition}")
    output = standard_output()
    left = count
    for detail in details:
        for page in pages(api, topic, detail, place, left):
            output.write(b"".join(map(write_as, page)))
            if left is not None:
                left -= len(page)
        if left == 0:
            break
    output.flush()


def pages(
    api: "Api", topic: str, detail: Any, place: Place, limit: int | None
) -> Iterator[list[Record]]:
    """One partition from the place to the end as it was when `detail` was asked."""
    from penstock.cli.http import segment

    query: dict[str, Any] = {"partition": detail["partition"], "max_bytes": PAGE_BYTES}
    query |= _start(detail, place)
    end = detail["latest"]
    while limit is None or limit > 0:
        query["limit"] = PAGE_RECORDS if limit is None else min(limit, PAGE_RECORDS)
        answer = api.get(f"/topics/{segment(topic)}/records", **query)
        found = [_record(topic, one) for one in answer["records"] if one["offset"] < end]
        if found:
            yield found
        if limit is not None:
            limit -= len(found)
        following = answer["next_offset"]
        if following >= end or following <= query.get("offset", -1):
            return
        for name in ("from", "time_us"):
            query.pop(name, None)
        query["offset"] = following


def _start(detail: Any, place: Place) -> dict[str, Any]:
    if place.word is not None:
        return {"from": place.word}
    if place.time_us is not None:
        return {"time_us": place.time_us}
    if place.last is not None:
        return {"offset": max(detail["earliest"], detail["latest"] - place.last)}
    return {"offset": place.offset}


def _record(topic: str, fields: Any) -> Record:
    key, value = fields["key"], fields["value"]
    return Record(
        topic,
        None if value is None else base64.b64decode(value),
        fields["partition"],
        fields["offset"],
        fields["timestamp_us"],
        None if key is None else base64.b64decode(key),
        [(name, base64.b64decode(value)) for name, value in fields["headers"]],
    )
