"""Arrow Flight: a process of its own, and the broker's link to it."""
