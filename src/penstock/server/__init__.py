"""Sockets, listeners and configuration: starts, drains and stops the broker.

No protocol knowledge here; a conversation lives in penstock.sessions.
"""
