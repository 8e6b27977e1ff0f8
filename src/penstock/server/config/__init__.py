"""Configuration: schema, loading, checks, messages."""
