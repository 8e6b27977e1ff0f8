"""The calls of the HTTP API on who asks, and on the server as a cluster of one."""

from penstock import __version__
from penstock.broker.access.access import Principal
from penstock.broker.access.rights import ROLE_ACTIONS, Operation
from penstock.broker.cluster import CLUSTER_ID, EPOCH, NODE_ID, ONLINE
from penstock.server.http.api import Api, Json


async def who_am_i(api: Api, who: Principal) -> Json:
    """`topics`: the patterns of a key; rules of topics may grant more."""
    api.broker.require(who, Operation.KEEP_ALIVE)
    access = api.broker.access
    return {
        "name": who.name,
        "kind": "key" if who.user_id is None else "user",
        "roles": list(access.roles(who)),
        "rights": sorted(ROLE_ACTIONS.get(access.role(who), ())),
        "topics": list(who.rules) or ["*"],
    }


async def cluster(api: Api, who: Principal) -> Json:
    """More than one node is for another engine; so there is nothing to join or to leave."""
    api.broker.require(who, Operation.DESCRIBE_CLUSTER)
    node = {"id": NODE_ID, "address": api.address, "status": ONLINE, "leader": True}
    return {
        "cluster": CLUSTER_ID,
        "engine": "embedded",
        "version": __version__,
        "leader": NODE_ID,
        "epoch": EPOCH,
        "nodes": [node],
    }
