"""The page as a text: well formed, nothing from outside, nothing foreign as markup. How it looks is tested
in tests/browser."""

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from kit.report_facts import HOSTILE, hostile, quiet, shop

from penstock.spark.report.facts import Groups, Report
from penstock.spark.report.page import render
from penstock.spark.report.plots import nice_ceiling

# All that the page is made of.
KNOWN_TAGS = frozenset(
    {"html", "head", "meta", "title", "style", "body", "header", "main", "footer", "section", "div"}
    | {"h1", "h2", "h3", "p", "span", "em", "bdi", "dl", "dt", "dd", "ol", "li", "input", "label"}
    | {"figure", "svg", "path", "rect", "line", "text"}
    | {"table", "thead", "tbody", "tr", "th", "td"}
)
VOID_TAGS = frozenset({"meta", "input"})


class Reading(HTMLParser):
    """Fails at a tag that is not closed, and gathers what there is."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.headings: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID_TAGS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}>"

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


def read(report: Report) -> Reading:
    found = Reading()
    found.feed(render(report))
    found.close()
    assert found.open == []
    return found


each_report = pytest.mark.parametrize(
    "report", [shop(), hostile(), quiet()], ids=["shop", "hostile", "quiet"]
)


@each_report
def test_it_is_whole_and_needs_nothing_else(report: Report) -> None:
    found = read(report)
    assert {tag for tag, _ in found.tags} <= KNOWN_TAGS
    for tag, attributes in found.tags:
        assert not {"src", "href", "style", "srcset", "action"} & set(attributes), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")]
        if tag == "svg" and "bars" not in (attributes["class"] or ""):
            assert attributes.get("role") == "img" or attributes.get("aria-hidden") == "true"
    named = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(set(named)) == len(named)
    referred = [a[n] for _, a in found.tags for n in ("for", "aria-labelledby") if n in a]
    assert set(referred) <= set(named)


@each_report
def test_only_its_own_style_is_allowed(report: Report) -> None:
    page = render(report)
    (style,) = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (allowed,) = re.findall('Content-Security-Policy" content="([^"]*)"', page)
    wanted = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert allowed.replace("&#x27;", "'") == wanted
    assert "url(" not in style and "@import" not in style
    assert "//" not in page.replace(digest, "")


@each_report
def test_every_plot_is_xml(report: Report) -> None:
    plots = re.findall(r'<svg class="plot".*?</svg>(?=</figure>)', render(report), re.DOTALL)
    assert plots
    for plot in plots:
        root = ElementTree.fromstring(plot)
        assert root.findtext("title")


def test_the_sections_and_their_numbers() -> None:
    found = read(shop())
    assert found.headings == [
        "Traffic by topic",
        "Traffic by protocol",
        "Payload sizes",
        "Topics",
        "Keys",
        "Lag of groups",
        "Dead letters",
        "Refused",
    ]
    text = "".join(found.text).replace("\N{NO-BREAK SPACE}", " ")
    for part in ("16.1 M", "182,340", "tenant-acme", "34.0 %", "max deliveries reached"):
        assert part in text, part
    assert "Made 2026-11-18 06:00:20 UTC by penstock 0.1.0; the job took 14 s." in text


def test_a_hostile_name_is_text_wherever_it_stands() -> None:
    page = render(hostile())
    assert not [one for one in page if not one.isprintable() and one not in "\n\xa0"]
    for name in HOSTILE[:3]:
        assert name not in page
    text = "".join(read(hostile()).text)
    assert text.count("<script>alert(1)</script>") >= 8
    assert "x" * 100 not in text


def test_a_protocol_has_the_same_colour_in_every_report() -> None:
    report = shop()
    alone = replace(report.traffic, by_protocol=report.traffic.by_protocol[-1:])
    for traffic in (report.traffic, alone):
        page = render(replace(report, traffic=traffic))
        assert re.search(r'<rect class="c6"[^>]*/></svg><bdi>http</bdi>', page)


def test_what_is_not_known_is_said() -> None:
    text = "".join(read(quiet()).text)
    assert "Not known: cannot connect." in text
    assert "No record has a key." in text
    assert "There are none in this time." in text
    nobody = replace(quiet(), groups=Groups())
    assert "There are no groups." in "".join(read(nobody).text)


def test_keys_of_which_none_is_frequent() -> None:
    report = shop()
    even = replace(report.traffic.keys[0], top=())
    page = render(replace(report, traffic=replace(report.traffic, keys=(even,))))
    assert "No key stands out." in page
    assert "more than 2,048 keys" in page


def test_dead_letters_alone_make_a_page() -> None:
    report = shop()
    nothing = replace(report.traffic, records=0, payload_bytes=0, null_values=0, sizes={}, keys=())
    nothing = replace(nothing, topics=(), by_topic=(), by_protocol=())
    found = read(replace(report, traffic=nothing))
    assert found.headings == ["Lag of groups", "Dead letters", "Refused"]


@pytest.mark.parametrize(
    ("highest", "base", "top", "step"),
    [
        (0, 10.0, 1, 1),
        (1, 10.0, 1, 0.25),
        (9, 10.0, 10, 2.5),
        (101, 10.0, 150, 50),
        (342, 10.0, 400, 100),
        (0.003, 10.0, 0.003, 0.001),
        (100_000, 1024.0, 131_072, 32_768),
        (3, 1024.0, 3, 1),
    ],
)
def test_axes_have_round_numbers(highest: float, base: float, top: float, step: float) -> None:
    assert nice_ceiling(highest, base=base) == pytest.approx((top, step))
