"""How much of each kind a report shows. The job counts no more, and the page has room for no more."""

from typing import Final

# Rows of the table of topics.
SHOWN_TOPICS: Final = 20
# As many colours as people can tell apart; style.py has them.
COLOURED_TOPICS: Final = 8
KEYED_TOPICS: Final = 6
SHOWN_KEYS: Final = 5
SHOWN_REASONS: Final = 12
# Rows of the table of lag.
SHOWN_GROUPS: Final = 20
# In a fixed order, so that a colour means the same in every report. The last: not known.
PROTOCOLS: Final = ("blipmq", "flymq", "rustlog", "felix", "fujin", "flight", "http", "")
