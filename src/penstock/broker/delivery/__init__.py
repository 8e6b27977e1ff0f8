"""Subscriptions: feeds, deliveries, acknowledgements, dead letters."""
