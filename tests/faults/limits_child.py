"""The child of test_system_limits.py: runs under a limit of the system and checks itself.

    limits_child.py descriptors <data directory> <n>   so many partitions with 1,024 descriptors
    limits_child.py size <data directory>              files that may not grow any more, then may again

Ends with 0 when all is well, else with a traceback.
"""

import errno
import os
import resource
import sys

from penstock.log.batch.format import encode_values
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.errors import AppendFailed
from penstock.log.settings import TopicSettings

DESCRIPTORS = 1024
# Appends on their way at once: the sum must stay well below what the log may queue.
GROUP = 500
FILE_BYTES = 100_000


def append_to_all(engine: EmbeddedEngine, partitions: int, text: bytes) -> None:
    for first in range(0, partitions, GROUP):
        tokens = [
            engine.append("many", partition, encode_values([b"%s %d" % (text, partition)], 1))
            for partition in range(first, first + GROUP)
        ]
        for token in tokens:
            token.result(300)
        open_now = len(os.listdir("/proc/self/fd"))
        assert open_now < DESCRIPTORS, f"{open_now} descriptors are open"


def check_all(engine: EmbeddedEngine, partitions: int, texts: list[bytes]) -> None:
    for partition in range(partitions):
        result = engine.read("many", partition, 0, 10_000).result(300)
        found = [value for view in result.views for value in view.values()]
        assert found == [b"%s %d" % (text, partition) for text in texts]


def run_with_few_descriptors(directory: str, partitions: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    # Nothing of this is about flushing, and thousands of flushes take long.
    settings = TopicSettings(durability="none")
    options = EngineOptions(cache_bytes=0)
    engine = EmbeddedEngine(directory, options)
    engine.create_topic("many", partitions, settings)
    append_to_all(engine, partitions, b"first")
    check_all(engine, partitions, [b"first"])
    append_to_all(engine, partitions, b"second")
    engine.close()
    engine = EmbeddedEngine(directory, options)
    check_all(engine, partitions, [b"first", b"second"])
    engine.close()


def run_with_small_files(directory: str) -> None:
    engine = EmbeddedEngine(directory, EngineOptions(cache_bytes=0))
    engine.create_topic("full")
    stored = [b"before" * 100]
    engine.append("full", 0, encode_values(stored, 1)).result(300)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, hard))
    too_much = encode_values([b"x" * FILE_BYTES], 1).from_producer(5, 0, 0)
    for _ in range(2):
        try:
            engine.append("full", 0, too_much).result(300)
        except AppendFailed as error:
            assert os.strerror(errno.EFBIG) in str(error), error
        else:
            raise AssertionError("stored beyond the limit")
        small = [b"there is still space for this"]
        engine.append("full", 0, encode_values(small, 1)).result(300)
        stored += small
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert engine.append("full", 0, too_much).result(300) == len(stored)
    stored.append(b"x" * FILE_BYTES)
    for _ in range(2):
        result = engine.read("full", 0, 0, 1 << 20).result(300)
        assert [value for view in result.views for value in view.values()] == stored
        token = engine.append("full", 0, too_much)
        assert token.result(300) == len(stored) - 1 and token.repeated
        engine.close()
        engine = EmbeddedEngine(directory)
    engine.close()


if __name__ == "__main__":
    what, where, *more = sys.argv[1:]
    if what == "descriptors":
        run_with_few_descriptors(where, int(more[0]))
    else:
        run_with_small_files(where)
