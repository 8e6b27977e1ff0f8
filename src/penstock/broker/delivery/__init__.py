"""What follows from a subscription: feeds, deliveries, acknowledgements, dead letters."""
