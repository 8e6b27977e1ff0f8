"""`penstock cat TOPIC...`: the records that are there now, from one place to another, and then the end.

Reads over the HTTP API, page by page, up to the end as it was at the start. Live: `penstock sub`.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.output import formatter, standard_output
from penstock.cli.places import PLACES_HELP, parse_place
from penstock.cli.sub import Decode, Schema, make_decoder
from penstock.cli.target import Target, with_target

if TYPE_CHECKING:
    from penstock.cli.records import Cursor


def register(app: typer.Typer) -> None:
    app.command("cat")(with_target(cat))


def cat(
    target: Target,
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", help="Names, or patterns such as 'orders.*'.")
    ],
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=0, help="At most so many records.")
    ] = None,
    start: Annotated[str, typer.Option("--from", metavar="PLACE", help=PLACES_HELP)] = "earliest",
    end: Annotated[
        str, typer.Option("--to", metavar="PLACE", help="Where to end, before this place.")
    ] = "latest",
    partition: Annotated[
        int | None, typer.Option("-p", "--partition", min=0, help="Only this one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    template: Annotated[
        str | None, typer.Option("--format", help=r"Such as '%o %v\n'; %t %p %o %T %k %v %S %h.")
    ] = None,
    decode: Decode = False,
    schema: Schema = None,
) -> None:
    """Print the records of topics that are there now."""
    from penstock.cli.records import cursors, end_at, find_topics, read

    place, until = parse_place(start, "--from"), parse_place(end, "--to")
    write_as = formatter(as_json, template, decode=make_decoder(target, decode, schema))
    api = target.api()
    output = standard_output()
    left = count
    wanted = cursors(find_topics(api, topics), partition, place)
    if place.offset is not None and all(cursor.end <= place.offset for cursor in wanted):
        _tell_ends(wanted, place.offset)
    for cursor in wanted:
        end_at(cursor, until)
        if cursor.offset >= cursor.end:
            continue
        for page in read(api, cursor, left, until.time_us):
            output.write(b"".join(map(write_as, page)))
            if left is not None:
                left -= len(page)
        if left == 0:
            break
    output.flush()


def _tell_ends(wanted: "list[Cursor]", offset: int) -> None:
    """One line instead of silence: nothing is there yet, or the offset is a mistake."""
    first = wanted[0]
    more = len(wanted) - 1
    others = f", {more} more end there or before" if more else ""
    place = f"{first.topic}/{first.partition} ends at offset {first.end}"
    typer.echo(f"nothing is at offset {offset}: {place}{others}", err=True)
