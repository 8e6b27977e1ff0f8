"""The one time limit of tests: it ends a test that hangs, and measures nothing.

A slow machine must not fail a test. Anything that takes part of a second on an idle machine may take a
minute beside other work, so every wait of a test ends with its event or with this limit. The limit of
pytest itself (`timeout` in pyproject.toml) is three times as long, so that the wait that hangs is the one
that fails.
"""

from typing import Final

HANG_S: Final = 300.0
