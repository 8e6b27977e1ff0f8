"""The page: one HTML file that needs nothing beside it. Pure: the same facts give the same text.

No script; a plot has two views, records and bytes, which radio buttons switch. Every foreign text comes in
by words.text or words.plain.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from penstock.spark.report import words
from penstock.spark.report.facts import Report, Series, Traffic
from penstock.spark.report.limits import COLOURED_TOPICS, PROTOCOLS
from penstock.spark.report.plots import Layer, histogram, stacked, swatch
from penstock.spark.report.style import CSS, policy
from penstock.spark.report.tables import (
    dead_letters,
    group_lag,
    key_skew,
    refusals,
    topic_table,
)

OTHERS: Final = "all others"
UNKNOWN_PROTOCOL: Final = "not known"
# Lines of a hint: the largest of a bar.
HINT_LINES: Final = 6
# Where the labels of the plot of sizes begin to touch each other on a phone.
MOST_SIZE_LABELS: Final = 6


def render(report: Report) -> str:
    title = f"Traffic report, {words.moment(report.made_us)}"
    traffic = report.traffic
    sections = [
        _over_time(traffic, traffic.by_topic, "topic", "Traffic by topic", _topic_name),
        '<div class="pair">',
        _over_time(traffic, traffic.by_protocol, "protocol", "Traffic by protocol", _protocol_name),
        _sizes(traffic),
        "</div>",
        topic_table(traffic),
        key_skew(traffic),
        group_lag(report.groups),
        dead_letters(traffic.letters),
        refusals(traffic.refusals),
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy())}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{title}</title>",
            f"<style>{CSS}</style></head><body>",
            _head(report),
            f"<main>{_tiles(report)}",
            *sections,
            "</main>",
            _foot(report),
            "</body></html>\n",
        ]
    )


def _head(report: Report) -> str:
    which = f"topics {words.text(report.pattern)}" if report.pattern else "all topics"
    since = f"from {words.moment(report.from_us)}" if report.from_us else "all that the log keeps"
    return (
        "<header><h1>Traffic report</h1>"
        f'<p class="soft">{words.text(report.server)}, {which}, <span class="whole">{since}</span>'
        f' <span class="whole">to {words.moment(report.to_us)}</span></p></header>'
    )


def _foot(report: Report) -> str:
    took = words.duration(report.job_s)
    return (
        f"<footer><p>Made {words.moment(report.made_us)} by penstock {escape(report.version)}; the job"
        f" took {took}. Times are in UTC, by the clock of the broker. Sizes are those of values. Dead"
        " letters and the audit trail are no traffic here: they are counted by their reasons alone."
        "</p></footer>"
    )


# --- the numbers at the top ------------------------------------------------------------------------


def _tiles(report: Report) -> str:
    traffic, groups = report.traffic, report.groups
    span_s = max((traffic.last_us - traffic.first_us) / 1e6, 1.0)
    peak = max(
        (sum(bar) for bar in zip(*(s.records for s in traffic.by_topic), strict=True)), default=0
    )
    worst = groups.top[0] if groups.top else None
    lag = "-" if groups.problem else words.count(worst.lag if worst else 0)
    nobody = "not known" if groups.problem else "no groups"
    tiles = [
        ("Records", words.count(traffic.records), f"in {words.duration(span_s)}"),
        ("Payload", words.size(traffic.payload_bytes), f"{_mean(traffic)} each"),
        ("Average rate", _per_second(traffic.records / span_s), _bytes_rate(traffic, span_s)),
        (
            "Highest rate",
            _per_second(peak / traffic.width_s),
            f"over {words.duration(traffic.width_s)}",
        ),
        ("Topics", words.count(traffic.topic_count), _plural(traffic.partition_count, "partition")),
        ("Largest lag", lag, words.text(worst.group, 22) if worst else nobody),
        ("Dead letters", words.count(traffic.letters.total), _letters_share(traffic)),
    ]
    shown = "".join(
        f'<div><dt>{name}</dt><dd class="big">{value}</dd><dd class="small">{more}</dd></div>'
        for name, value, more in tiles
    )
    return f'<dl class="tiles">{shown}</dl>'


def _mean(traffic: Traffic) -> str:
    with_value = traffic.records - traffic.null_values
    return words.size(traffic.payload_bytes / with_value if with_value else 0)


def _per_second(rate: float) -> str:
    return f"{words.scaled(rate)}/s"


def _bytes_rate(traffic: Traffic, span_s: float) -> str:
    return f"{words.size(traffic.payload_bytes / span_s)}/s"


def _letters_share(traffic: Traffic) -> str:
    return f"{words.share(traffic.letters.total, traffic.records)} of records"


def _plural(number: int, what: str) -> str:
    return f"{words.count(number)} {what}{'' if number == 1 else 's'}"


# --- over time -------------------------------------------------------------------------------------


def _topic_name(name: str | None) -> str:
    return f"<em>{OTHERS}</em>" if name is None else words.text(name, 40)


def _protocol_name(name: str | None) -> str:
    return words.text(name) if name else f"<em>{UNKNOWN_PROTOCOL}</em>"


def _plain_name(name: str | None) -> str:
    return words.plain(name, 40) if name else UNKNOWN_PROTOCOL if name == "" else OTHERS


def _colours(series: Sequence[Series], kind: str) -> list[str]:
    """Topics by their place, protocols each its own; grey for what has no name or no colour left."""
    if kind == "protocol":
        places_of = {name: place for place, name in enumerate(PROTOCOLS)}
        return [_colour(places_of.get(one.name or "", COLOURED_TOPICS), one) for one in series]
    return [_colour(place, one) for place, one in enumerate(series)]


def _colour(place: int, series: Series) -> str:
    return "rest" if not series.name or place >= COLOURED_TOPICS else f"c{place}"


@dataclass(frozen=True, slots=True)
class View:
    """What a plot shows of its series. `letter`: its class in the style sheet."""

    letter: str
    unit: str
    pick: Callable[[Series], Sequence[int]]
    show: Callable[[float], str]
    base: float


RECORDS: Final = View("a", "records per second", lambda one: one.records, words.scaled, 10.0)
BYTES: Final = View("b", "bytes per second", lambda one: one.payload_bytes, words.size, 1024.0)


def _view(traffic: Traffic, series: Sequence[Series], kind: str, title: str, view: View) -> str:
    width = words.duration(traffic.width_s)
    layers = [
        Layer(colour, [value / traffic.width_s for value in view.pick(one)])
        for colour, one in zip(_colours(series, kind), series, strict=True)
    ]
    period = f"from {words.moment(traffic.first_us)} to {words.moment(traffic.last_us)}"
    plot = stacked(
        layers,
        traffic,
        name=f"{kind}-{view.letter}",
        label=f"{title}, {view.unit}: bars of {width} {period}",
        hints=_hints(traffic, series, layers, view.show),
        axis=view.show,
        base=view.base,
    )
    note = f"{view.unit.capitalize()}; a bar is {width}."
    return (
        f'<div class="view {view.letter}"><p class="note">{note}</p><figure>{plot}</figure></div>'
    )


def _over_time(
    traffic: Traffic,
    series: Sequence[Series],
    kind: str,
    title: str,
    name_of: Callable[[str | None], str],
) -> str:
    """Two views of the same: records and bytes in a second."""
    if not traffic.records:
        return ""
    views = "".join(_view(traffic, series, kind, title, view) for view in (RECORDS, BYTES))
    chosen = (
        f'<input class="choice a" type="radio" name="{kind}" id="{kind}-records" checked>'
        f'<input class="choice b" type="radio" name="{kind}" id="{kind}-bytes">'
        f'<div class="choices"><label class="a" for="{kind}-records">Records</label>'
        f'<label class="b" for="{kind}-bytes">Bytes</label></div>'
    )
    legend = "".join(
        f"<li>{swatch(colour)}{name_of(one.name)}"
        f"<span>{words.share(sum(one.records), traffic.records)}</span></li>"
        for colour, one in zip(_colours(series, kind), series, strict=True)
    )
    return (
        f'<section class="card" aria-label="{title}"><h2>{title}</h2>{chosen}{views}'
        f'<ol class="legend">{legend}</ol></section>'
    )


def _hints(
    traffic: Traffic,
    series: Sequence[Series],
    layers: Sequence[Layer],
    show: Callable[[float], str],
) -> list[str]:
    """For each bar when it is, and the largest of its parts."""
    found = []
    for bar in range(traffic.bars):
        begins = words.at((traffic.start_s + bar * traffic.width_s) * 1_000_000)
        parts = [(layer.values[bar], one.name) for one, layer in zip(series, layers, strict=True)]
        there = sorted((one for one in parts if one[0]), key=lambda one: -one[0])
        lines = [f"{begins:%Y-%m-%d %H:%M:%S} UTC: {show(sum(one for one, _ in parts))}/s"]
        lines += [f"{_plain_name(name)} {show(value)}/s" for value, name in there[:HINT_LINES]]
        found.append("\n".join(lines))
    return found


# --- sizes -----------------------------------------------------------------------------------------


def _sizes(traffic: Traffic) -> str:
    """A column for every power of two, between the smallest and the largest value."""
    if not traffic.sizes:
        return ""
    low, high = min(traffic.sizes), max(traffic.sizes)
    columns = range(low, high + 1)
    values = [traffic.sizes.get(bits, 0) for bits in columns]
    whole = sum(values)
    every = -(-len(columns) // MOST_SIZE_LABELS)
    labels = [words.size(_least(bits)) if not (bits - low) % every else "" for bits in columns]
    hints = [
        f"{words.size(_least(bits))} to {words.size(2**bits - 1)}: {words.count(value)} records,"
        f" {words.share(value, whole)}"
        if bits > 1
        else f"{_least(bits)} B: {words.count(value)} records, {words.share(value, whole)}"
        for bits, value in zip(columns, values, strict=True)
    ]
    nulls = (
        f", {_plural(traffic.null_values, 'record')} without a value" if traffic.null_values else ""
    )
    return (
        '<section class="card" aria-label="Payload sizes"><h2>Payload sizes</h2>'
        f'<p class="note">Records by the size of their value: {_mean(traffic)} on average, the largest'
        f" {words.size(traffic.largest_bytes)}{nulls}. A column stands for sizes twice as large as the"
        " one before.</p><figure>"
        + histogram(values, labels, hints, name="sizes", label="Records by the size of their value")
        + "</figure></section>"
    )


def _least(bits: int) -> int:
    """The smallest size that has so many bits."""
    return 2 ** (bits - 1) if bits else 0
