"""The calls of the HTTP API on who asks, and on who serves the log."""

from penstock import __version__
from penstock.broker.access.access import Principal
from penstock.broker.access.rights import ROLE_ACTIONS, Operation
from penstock.broker.cluster import EPOCH, ONLINE
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
    """Gateways of Kafka and its brokers, or the one node of the embedded engine. `trouble`: why Kafka
    cannot be reached now, empty normally."""
    api.broker.require(who, Operation.DESCRIBE_CLUSTER)
    view = api.engine.cluster()
    nodes = [
        {
            "id": node.id,
            "address": api.address if node.id == view.this else node.address,
            "cluster_address": node.cluster_address,
            "status": ONLINE,
            "leader": node.id == view.this,
        }
        for node in view.nodes
    ]
    return {
        "cluster": view.id,
        "engine": view.engine,
        "version": __version__,
        "leader": view.this,
        "epoch": EPOCH,
        "nodes": nodes,
        "trouble": view.trouble,
    }
