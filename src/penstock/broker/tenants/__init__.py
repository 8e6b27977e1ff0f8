"""Tenants and namespaces: names above topics and caches."""
