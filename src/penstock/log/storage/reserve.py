"""A little space kept back for a full disk, so that space can be made: a topic deleted, retention applied.

Both must write something first. Appends fill the disk to the last block, and they would fill what is given
back too: from the moment the reserve is spent they are refused, until it could be made again.
"""

import errno
import logging
import os
from contextlib import suppress

from penstock.log.errors import StorageFull
from penstock.log.storage.files import FileSystem
from penstock.log.storage.segment import write_all

RESERVE_FILE = "reserve"
# Pages of some hundred metadata changes, and the small files of as many partitions.
RESERVE_BYTES = 1024 * 1024

logger = logging.getLogger(__name__)


class Reserve:
    """`spent` may be read by any thread. The rest is called by one that writes metadata or maintains."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._path = f"{directory}/{RESERVE_FILE}"
        self.spent = False

    def fill(self) -> None:
        """At start, and again and again while it is spent."""
        if self._files.exists(self._path) and self._files.size(self._path) >= RESERVE_BYTES:
            self.spent = False
            return
        try:
            file = self._files.open(self._path, create=True, write=True)
            try:
                # Random: where files are compressed, zeros would take no space. Flushed: only then it is
                # taken for sure.
                write_all(file, os.urandom(RESERVE_BYTES), 0)
                file.sync()
            finally:
                file.close()
        except OSError as error:
            with suppress(OSError):
                self._files.remove(self._path)
            if not self.spent:
                logger.error("%s: %s; nothing is stored until there is space", self._path, error)
            self.spent = True
            return
        if self.spent:
            logger.warning("%s is there again, records are stored again", self._path)
        self.spent = False

    def check(self, place: str) -> None:
        """Raises StorageFull while it is spent; `place` is what could not be written to."""
        if self.spent:
            raise StorageFull(place, os.strerror(errno.ENOSPC))

    def spend(self) -> bool:
        """Whether there was something to give: then what failed is worth another try."""
        try:
            self._files.remove(self._path)
        except OSError:
            return False
        self.spent = True
        logger.error(
            "the disk is full: %s is given up for metadata and retention;"
            " nothing is stored until there is space",
            self._path,
        )
        return True
