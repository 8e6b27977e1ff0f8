"""How log lines look: the time with its zone, as text or as JSON."""

import json
import logging
import re
from collections.abc import Iterator

import pytest

from penstock.server import logs

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    logging.getLogger("a.b").info("it is %d", 5)
    logging.getLogger("a.b").debug("not shown")
    assert re.fullmatch(rf"{TIME} INFO a\.b: it is 5\n", capsys.readouterr().err)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("debug", "json")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("a.b").exception('a "quoted"\nthing')
    (line,) = capsys.readouterr().err.splitlines()
    found = json.loads(line)
    assert re.fullmatch(TIME, found.pop("time"))
    assert "ValueError: two" in found.pop("error")
    assert found == {"level": "ERROR", "logger": "a.b", "message": 'a "quoted"\nthing'}
