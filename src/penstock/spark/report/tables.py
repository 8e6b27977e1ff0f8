"""Sections of the page that are tables and lists: topics, keys, lag, reasons. Pure."""

from penstock.spark.report import words
from penstock.spark.report.facts import Groups, Reasons, TopicKeys, Traffic
from penstock.spark.report.plots import meter

# Of a reason, in its table.
REASON_CHARACTERS = 140


def topic_table(traffic: Traffic) -> str:
    if not traffic.topics:
        return ""
    span_s = max((traffic.last_us - traffic.first_us) / 1e6, 1.0)
    most = traffic.topics[0].records
    rows = "".join(
        f'<tr><th scope="row" class="name">{words.text(one.name)}</th>'
        f"<td>{words.count(one.records)}</td>"
        f'<td class="wide">{meter(one.records, most)}</td>'
        f"<td>{words.share(one.records, traffic.records)}</td>"
        f"<td>{words.scaled(one.records / span_s)}/s</td>"
        f"<td>{words.size(one.payload_bytes)}</td>"
        f"<td>{words.size(one.payload_bytes / one.records)}</td>"
        f"<td>{words.size(one.largest_bytes)}</td>"
        f"<td>{one.partitions}</td>"
        f"<td>{words.share(one.busiest, one.records)}</td></tr>"
        for one in traffic.topics
    )
    head = (
        '<th scope="col">Topic</th><th scope="col">Records</th><td class="wide"></td>'
        '<th scope="col">Share</th><th scope="col">Rate</th><th scope="col">Payload</th>'
        '<th scope="col">Mean</th><th scope="col">Largest</th><th scope="col">Partitions</th>'
        '<th scope="col">In the fullest</th>'
    )
    return _section(
        "Topics",
        "Partitions with records, and the share of the records that lie in the fullest of them.",
        _table("Topics", head, rows)
        + _more(traffic.topic_count - len(traffic.topics), "topic", "topics"),
    )


def key_skew(traffic: Traffic) -> str:
    if not traffic.keys:
        return _section("Keys", "No record has a key.", "") if traffic.records else ""
    cards = "".join(map(_keys_of, traffic.keys))
    return _section(
        "Keys",
        "The most frequent keys of a topic, and their share of its records with a key. One key is in one"
        " partition: a large share is what one partition has to bear.",
        f'<div class="keys">{cards}</div>',
    )


def _keys_of(one: TopicKeys) -> str:
    different = words.count(one.different)
    known = f"{different} keys" if one.different != 1 else "1 key"
    if one.slack:
        known = f"more than {different} keys; counts may be up to {words.count(one.slack)} too low"
    items = "".join(
        f'<li><div class="line">{words.text(words.of_key(key.key), 32)}<span>'
        f'{words.share(key.records, one.keyed)} <span class="soft">{words.count(key.records)}</span>'
        f"</span></div>{meter(key.records, one.keyed, 'c4')}</li>"
        for key in one.top
    )
    listed = f"<ol>{items}</ol>" if items else '<p class="more">No key stands out.</p>'
    return (
        f"<div><h3>{words.text(one.topic, 40)}</h3>{listed}"
        f'<p class="more">{known}, {words.count(one.keyed)} records</p></div>'
    )


def group_lag(groups: Groups) -> str:
    if groups.problem:
        return _section("Lag of groups", f"Not known: {words.text(groups.problem, 200)}.", "")
    if not groups.top:
        return _section("Lag of groups", "There are no groups.", "")
    most = groups.top[0].lag
    rows = "".join(
        f'<tr><th scope="row" class="name">{words.text(one.group, 48)}</th>'
        f'<td class="left name">{words.text(one.topic, 48)}</td>'
        f"<td>{words.count(one.lag)}</td>"
        f'<td class="wide">{meter(one.lag, most, "c1")}</td>'
        f"<td>{words.count(one.worst)}</td><td>{one.partitions}</td>"
        f"<td>{'-' if one.committed_us is None else words.moment(one.committed_us)[:-4]}</td></tr>"
        for one in groups.top
    )
    head = (
        '<th scope="col">Group</th><th scope="col" class="left">Topic</th><th scope="col">Lag</th>'
        '<td class="wide"></td><th scope="col">Worst partition</th><th scope="col">Partitions</th>'
        '<th scope="col">Last commit (UTC)</th>'
    )
    shown = len({one.group for one in groups.top})
    return _section(
        "Lag of groups",
        "Records that a group has not read yet, when this page was made.",
        _table("Lag of groups", head, rows) + _more(groups.count - shown, "group", "groups"),
    )


def dead_letters(letters: Reasons) -> str:
    if not letters.total:
        return _section("Dead letters", "There are none in this time.", "")
    note = f"{words.count(letters.total)} records were set aside, for these reasons."
    return _reasons("Dead letters", note, "Topic", letters, "c3")


def refusals(refused: Reasons) -> str:
    if not refused.total:
        return ""
    note = f"{words.count(refused.total)} logins and requests that failed, as the audit trail has them."
    return _reasons("Refused", note, "Protocol", refused, "c6")


def _reasons(title: str, note: str, where: str, reasons: Reasons, colour: str) -> str:
    most = reasons.top[0].records if reasons.top else 0
    rows = "".join(
        f'<tr><th scope="row" class="why">{words.text(one.text, REASON_CHARACTERS)}</th>'
        f"<td>{words.count(one.records)}</td>"
        f'<td class="wide">{meter(one.records, most, colour)}</td>'
        f"<td>{words.share(one.records, reasons.total)}</td>"
        f'<td class="left name">{words.text(one.where, 48)}</td></tr>'
        for one in reasons.top
    )
    head = (
        '<th scope="col">Reason</th><th scope="col">Count</th><td class="wide"></td>'
        f'<th scope="col">Share</th><th scope="col" class="left">{where}</th>'
    )
    others = reasons.total - sum(one.records for one in reasons.top)
    more = f'<p class="more">{words.count(others)} for other reasons</p>' if others > 0 else ""
    return _section(title, note, _table(title, head, rows) + more)


def _section(title: str, note: str, content: str) -> str:
    return (
        f'<section class="card" aria-label="{title}"><h2>{title}</h2><p class="note">{note}</p>'
        f"{content}</section>"
    )


def _table(title: str, head: str, rows: str) -> str:
    """Scrolls inside of its box where it is too wide; the keyboard can do that too."""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}, table"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _more(count: int, one: str, several: str) -> str:
    if count <= 0:
        return ""
    return f'<p class="more">and {words.count(count)} more {one if count == 1 else several}</p>'
