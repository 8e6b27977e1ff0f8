"""Addresses for the servers of tests: of every listener that the configuration knows.

A protocol that is added to the table is on a free port in all tests without a change here or there.
"""

from collections.abc import Mapping
from typing import Final

from penstock.server.config.checks import quic_listeners
from penstock.server.config.schema import AllListenersConfig

FREE_PORT: Final = "127.0.0.1:0"
OFF: Final = "off"


def all_listeners(address: str = FREE_PORT, /, **others: str) -> dict[str, str]:
    """Settings that put every listener there, save `others`, which are given by name."""
    names: tuple[str, ...] = AllListenersConfig.__struct_fields__
    return {f"listeners.{name}": others.get(name, address) for name in names}


def free_listeners(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings of a server on free ports: Flight is off, because it is a process of its own and takes a
    second to start; so is QUIC where certificates of clients are wanted, for which it cannot ask."""
    quic = dict.fromkeys(quic_listeners(), OFF) if "tls.client_ca" in settings else {}
    return all_listeners(flight=OFF, **quic)


def as_flags(settings: Mapping[str, str]) -> list[str]:
    """For the command line."""
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


def as_variables(settings: Mapping[str, str]) -> dict[str, str]:
    """For the environment, before which options go."""
    return {f"PENSTOCK__{key.upper().replace('.', '__')}": settings[key] for key in settings}
