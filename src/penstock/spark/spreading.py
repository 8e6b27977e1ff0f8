"""Which server each task talks to, where several serve the same topics: gateways in front of one Kafka.

The server that the driver asks names them in its answers. Tasks take turns: each begins with its own one
and goes on with the next when that cannot be reached. A range has the same rows from all of them, and a
transaction that is staged through one can be committed through another. Pure.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql.datasource import InputPartition

from penstock.spark.ranges import Ranges

# A task that finds so many of them dead has a dead cluster: a longer list would only make tasks larger.
MOST_NAMED: Final = 4


class Task(InputPartition):
    """What one task reads, and where; without servers from the one of the options."""

    def __init__(self, ranges: Ranges, servers: tuple[str, ...] = ()) -> None:
        super().__init__(ranges)
        self.servers = servers


def servers_for(number: int, named: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Those of the task with this number, its own one first. `named` by the server, `given` by the user,
    who may have reasons of his own: they are the last to be tried. None where nobody else is named."""
    if len(named) < 2:
        return ()
    first = number % len(named)
    turned = [*named[first:], *named[:first]][:MOST_NAMED]
    return tuple(dict.fromkeys((*turned, *given)))


def spread(tasks: Sequence[Ranges], named: Sequence[str], given: Sequence[str]) -> list[Task]:
    return [Task(task, servers_for(place, named, given)) for place, task in enumerate(tasks)]


def servers_of(partition: InputPartition | None) -> tuple[str, ...]:
    """Of the partition that Spark hands to a task; it makes one of its own where nothing is to be read."""
    return partition.servers if isinstance(partition, Task) else ()
