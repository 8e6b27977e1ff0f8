"""Sockets, listeners and configuration: starts, drains and stops the broker.

Knows no wire format: the sessions of the protocols are in penstock.sessions.
"""
