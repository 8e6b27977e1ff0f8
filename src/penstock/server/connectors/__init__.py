"""Routes of Fujin to brokers outside: one small module for each library, and what they share.

settings.py    the tables of the configuration
connector.py   what a library's module implements
link.py        one connection of a route: opened lazily, opened anew after an outage, closed
route.py       the route as sessions see it, and its writes
reading.py     subscriptions, transacting.py transactions, as sessions see them
routes.py      all routes of a configuration
"""
