"""Whether there is room for more topics, partitions, groups or subscriptions, as the limits allow."""

from penstock.broker.errors import BrokerError, Code
from penstock.broker.options import BrokerOptions
from penstock.log.engine import Sizes


def check_room(
    sizes: Sizes,
    options: BrokerOptions,
    *,
    topics: int = 0,
    partitions: int = 0,
    groups: int = 0,
) -> None:
    """Raises LIMIT_REACHED if this many more would exceed the limit."""
    check_limit("topics", topics, sizes.topics, options.max_topics)
    check_limit("partitions", partitions, sizes.partitions, options.max_partitions)
    check_limit("groups", groups, sizes.groups, options.max_groups)


def check_limit(what: str, more: int, there: int, most: int) -> None:
    """`what` is also the name of the limit."""
    if more and there + more > most:
        wanted = "1 more is" if more == 1 else f"{more} more are"
        raise BrokerError(
            Code.LIMIT_REACHED,
            f"there are {there} {what} and {wanted} over limits.{what} = {most};"
            " delete some, or raise the limit",
        )
