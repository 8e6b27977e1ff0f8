"""Schemas: the registry, the three kinds of them, compatibility, and validation at the publish door."""
