"""A browser for the pages of a module: Debian's chromium, driven by Playwright. tools/bootstrap.py installs
it; where it is not, the tests are skipped by its name."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

PROGRAM = "chromium"


# Not longer: while it is open, an event loop runs in this thread, and no other one can.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which(PROGRAM)
    if program is None:
        pytest.skip(f"{PROGRAM} is not on this machine: on Debian, apt-get install {PROGRAM}")
    # Its sandbox refuses to run for root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=arguments)
        yield opened
        opened.close()
