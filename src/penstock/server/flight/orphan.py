"""Lets the kernel end this process when its parent ends, however that happens. Linux only."""

import ctypes
import os
import signal
from typing import Final

# From sys/prctl.h.
PR_SET_PDEATHSIG: Final = 1


def end_with_parent(parent: int) -> None:
    """From now on SIGKILL follows the end of the process `parent`, which started this one. SIGKILL,
    because a process without its server has nothing to report and nothing to save."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel knew
        os._exit(0)
