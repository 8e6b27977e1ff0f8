"""Reports the state to systemd: READY=1, STOPPING=1, as sd_notify(3) does. Does nothing without systemd."""

import logging
import socket
from collections.abc import Mapping

logger = logging.getLogger(__name__)


def notify(environment: Mapping[str, str], state: str) -> None:
    """One datagram to $NOTIFY_SOCKET. A failure is logged and otherwise ignored."""
    path = environment.get("NOTIFY_SOCKET", "")
    if not path:
        return
    # "@" stands for the abstract namespace of Linux.
    target = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), target)
    except OSError as error:
        logger.warning("NOTIFY_SOCKET %s: %s", path, error.strerror)
