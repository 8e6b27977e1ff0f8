"""The page of `penstock report` in a browser: wide and narrow, light and dark. A page can have every text
and still be blank or too wide, so that this looks at boxes and at colours."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser.pictures import colours
from kit.report_facts import HOSTILE, hostile, quiet, shop
from playwright.sync_api import Browser, Page, ViewportSize

from penstock.spark.report.facts import Report
from penstock.spark.report.page import render

DESKTOP, PHONE = 1280, 390
HEIGHT = 900
SMALL: ViewportSize = {"width": 320, "height": 240}
# Of a plot: those of the topics. Letters alone have shades of one colour.
SERIES = 9
# So that a few pixels at an edge do not count.
SEEN_PIXELS = 150

FILLS = "all => all.map(one => getComputedStyle(one).fill)"
WIDE = "document.scrollingElement.scrollWidth"
BOXES = """all => all.map(one => {
    const box = one.getBoundingClientRect();
    return [box.left, box.right, box.width, box.height];
})"""


ALL = [(width, scheme) for width in (DESKTOP, PHONE) for scheme in ("light", "dark")]
EACH_ONCE = [(DESKTOP, "light"), (PHONE, "dark")]

Open = Callable[[int, str], Page]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Fails for whatever the browser complains about, and for a page that asks for something."""
    said: list[str] = []
    opened: list[Page] = []

    def new(width: int, scheme: Any) -> Page:
        page = browser.new_page(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("request", lambda asked: said.append(asked.url) if _outside(asked.url) else None)
        opened.append(page)
        return page

    yield new
    for page in opened:
        page.close()
    assert said == []


def _outside(url: str) -> bool:
    return not url.startswith("file:")


def show(page: Page, report: Report, directory: Path) -> None:
    path = directory / "report.html"
    path.write_text(render(report))
    page.goto(path.as_uri())


def assert_fits(page: Page, width: int) -> None:
    assert page.evaluate(WIDE) <= width
    plots = page.locator("svg.plot:visible")
    assert plots.count() >= 1
    for left, right, wide, high in plots.evaluate_all(BOXES):
        assert left >= 0 and right <= width
        assert wide > width / 3 and high > 100
    # A table may be wider, in a box of its own that scrolls.
    for left, right, _, _ in page.locator(".card:visible, .tiles > div, .scroll").evaluate_all(
        BOXES
    ):
        assert left >= 0 and right <= width
    for left, right, _, _ in page.locator("h1, h2, h3, p, li, dd").evaluate_all(BOXES):
        assert left >= 0 and right <= width


@pytest.mark.parametrize(("width", "scheme"), ALL)
def test_a_day_of_a_shop(open_page: Open, tmp_path: Path, width: int, scheme: str) -> None:
    page = open_page(width, scheme)
    show(page, shop(), tmp_path)
    assert_fits(page, width)
    assert page.locator("svg.plot:visible").count() == 3
    plot = page.locator("svg.plot:visible").first
    plot.scroll_into_view_if_needed()
    many = [one for one, count in colours(plot.screenshot()).items() if count >= SEEN_PIXELS]
    strong = {one for one in many if max(one) - min(one) > 40}
    assert len(strong) >= 6, strong


@pytest.mark.parametrize(("width", "scheme"), EACH_ONCE)
@pytest.mark.parametrize("make", [hostile, quiet], ids=["hostile", "quiet"])
def test_the_worst_names_and_the_least_traffic(
    open_page: Open, tmp_path: Path, make: Callable[[], Report], width: int, scheme: str
) -> None:
    page = open_page(width, scheme)
    show(page, make(), tmp_path)
    assert_fits(page, width)
    assert page.locator("script, img, iframe, h1 ~ h1").count() == 0
    if make is hostile:
        assert page.get_by_text(HOSTILE[0]).count() >= 8


def test_bytes_instead_of_records(open_page: Open, tmp_path: Path) -> None:
    page = open_page(PHONE, "light")
    show(page, shop(), tmp_path)
    card = page.locator("section", has_text="Traffic by topic")
    axis = card.locator("svg.plot:visible text.up").first
    assert axis.text_content() == "100"
    card.get_by_text("Bytes", exact=True).click()
    assert "KiB" in (axis.text_content() or "")
    assert_fits(page, PHONE)


def test_light_and_dark_are_what_the_reader_has_set(open_page: Open, tmp_path: Path) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        page = open_page(PHONE, scheme)
        page.set_viewport_size(SMALL)
        show(page, quiet(), tmp_path)
        (ground, _), *_ = colours(page.screenshot()).most_common(1)
        grounds.append(sum(ground))
    assert grounds[0] > 3 * 230
    assert grounds[1] < 3 * 40


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_letters_and_colours_stand_out(open_page: Open, tmp_path: Path, scheme: str) -> None:
    """At least 4.5 to 1 for all that is written and 3 to 1 for colours, as browsers compute them."""
    page = open_page(DESKTOP, scheme)
    show(page, shop(), tmp_path)

    def style(selector: str, name: str) -> str:
        found: str = page.locator(selector).first.evaluate(f"one => getComputedStyle(one).{name}")
        return found

    for selector in ("body", ".note", "dt", ".small", "th", ".more", "footer"):
        ground = style(".card" if selector not in ("body", "footer") else "body", "backgroundColor")
        assert contrast(style(selector, "color"), ground) >= 4.5, selector
    fills = page.locator(".legend rect").evaluate_all(FILLS)
    assert len(set(fills[:SERIES])) == SERIES
    for fill in fills:
        assert contrast(fill, style(".card", "backgroundColor")) >= 3, fill


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    channels = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
