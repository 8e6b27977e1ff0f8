"""The Flight process: python -P -m penstock.server.flight.main <descriptor of the link> <process id of
the server>.

Started by host.py. Ends when the server tells it to, or is gone: the kernel kills it with the server, also
while the modules below are still loading. Serves no one else.
"""

import os
import sys

from penstock.server.flight.orphan import end_with_parent

if __name__ == "__main__":
    # Before the imports below: they take a second.
    end_with_parent(int(sys.argv[2]))

import logging
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

# gRPC would print its own message about a port in use; the server reports that itself.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from pyarrow import ArrowException

from penstock.server import logs
from penstock.server.flight.broker import BrokerLink
from penstock.server.flight.errors import hide_tracebacks
from penstock.server.flight.link import (
    FlightKeys,
    LinkClosed,
    Refused,
    Start,
    Started,
    receive,
    to_child_decoder,
)
from penstock.server.flight.service import FlightService
from penstock.server.net.address import Address

# About a third of the processor time of a server that wants all of it, and all that is left over.
NICENESS = 5


def _run_clock(base_us: int | None) -> Callable[[], int]:
    """What the server's records expire by: its own clock, which is not that of the wall."""
    if base_us is None:
        return lambda: time.time_ns() // 1000
    return lambda: base_us + time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def _tls(start: Start) -> dict[str, object]:
    if start.certificate is None or start.key is None:
        return {}
    settings: dict[str, object] = {
        "tls_certificates": [(_content(start.certificate), _content(start.key))]
    }
    if start.client_ca is not None:
        settings |= {"verify_client": True, "root_certificates": _content(start.client_ca)}
    return settings


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _step_back() -> None:
    """Reads are large and never urgent: whenever the server's event loop wakes up, it goes first."""
    os.nice(NICENESS)
    if hasattr(os, "SCHED_BATCH"):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main() -> int:
    # Ctrl-C and a stop of the whole service go to this process too: the server decides when.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _step_back()
    hide_tracebacks()
    connection = socket.socket(fileno=int(sys.argv[1]))
    try:
        start = to_child_decoder.decode(receive(connection)[0])
        keys = to_child_decoder.decode(receive(connection)[0])
    except (LinkClosed, OSError):
        return 0
    assert isinstance(start, Start), "the first message tells where to listen"
    logs.configure(logging.getLevelName(start.log_level), start.log_format)
    assert isinstance(keys, FlightKeys), "the second one brings the keys"
    link = BrokerLink(connection)
    link.use_keys(keys)
    scheme = "grpc" if start.certificate is None else "grpc+tls"
    location = f"{scheme}://{Address(start.host, start.port)}"
    clock_us = _run_clock(start.run_base_us)
    try:
        service = FlightService(location, link, start.limits, clock_us, **_tls(start))
    except (ArrowException, OSError) as error:
        with suppress(OSError):  # of a server that is gone
            link.tell(Refused(str(error).strip()))
        return 1
    try:
        link.tell(Started())
    except OSError:
        return 0  # the server is gone
    link.listen()
    link.stopping = True
    # Streams that go on end themselves now; one whose peer reads nothing is ended by the server.
    stopper = threading.Thread(target=service.shutdown, daemon=True)
    stopper.start()
    # The answers that streams still wait for come over the same link.
    listener = threading.Thread(target=_listen_to_the_end, args=(link,), daemon=True)
    listener.start()
    stopper.join()
    return 0


def _listen_to_the_end(link: BrokerLink) -> None:
    link.listen()
    # The server is gone, or the grace period is over.
    os._exit(0)


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # Without waiting for gRPC's threads.
    os._exit(status)
