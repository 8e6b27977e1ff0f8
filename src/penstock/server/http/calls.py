"""The table of HTTP calls: paths, methods, what each is in the table of rights, and its function.

Routing, logins and the bodies of errors are in app.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from penstock.broker.access.rights import Operation
from penstock.server.http import (
    about,
    accounts,
    audit,
    dead_letters,
    delayed,
    groups,
    publishing,
    schemas,
    tenants,
    transactions,
)
from penstock.server.http.api import Api
from penstock.server.http.api_types import (
    GroupCommit,
    GroupJoin,
    GroupMember,
    GroupReset,
    KeyRequest,
    MessageToValidate,
    PasswordChange,
    PublishRequest,
    ReplayRequest,
    RuleRequest,
    SchemaChange,
    SchemaRequest,
    StageRequest,
    TenantRequest,
    TopicChange,
    TopicRequest,
    UserChange,
    UserRequest,
)

API_PREFIX: Final = "/api/v1/"
# Requests are small: names, settings, offsets.
MAX_BODY_BYTES: Final = 1024 * 1024
# Of one that brings records: base64 makes four bytes of three. More is for Flight and the wire protocols.
MAX_RECORDS_BODY_BYTES: Final = 4 * 1024 * 1024
NO_CONTENT_STATUS: Final = 204


@dataclass(frozen=True, slots=True)
class Call:
    """What it is in the table of rights, and the method of Api. That gets who asks, the name in the path,
    and then its body or its query, as far as there are such."""

    operation: Operation
    function: Callable[..., Any]
    status: int = 200
    body: type[Any] | None = None
    query: tuple[str, ...] = ()
    body_bytes: int = MAX_BODY_BYTES


LIST: Final = ("limit", "after")
FORCE: Final = ("force",)
PLACE: Final = ("partition", "from", "offset", "time_us")
RECORDS: Final = (*PLACE, "limit", "max_bytes")

# Without a key, for probes and scrapers: path -> what it is in the table of rights.
OPEN_CALLS: Final = {
    "/healthz": Operation.CHECK_HEALTH,
    "/readyz": Operation.CHECK_HEALTH,
    "/metrics": Operation.READ_METRICS,
    "/metrics/partitions": Operation.READ_METRICS,
}
# Path behind the prefix -> method -> call.
CALLS: Final[dict[str, dict[str, Call]]] = {
    "topics": {
        "GET": Call(Operation.LIST_TOPICS, Api.topics, query=LIST),
        "POST": Call(Operation.CREATE_TOPIC, Api.create_topic, 201, TopicRequest),
    },
    "topics/{name}": {
        "GET": Call(Operation.DESCRIBE_TOPIC, Api.topic),
        "PATCH": Call(Operation.CHANGE_TOPIC, Api.change_topic, body=TopicChange),
        "DELETE": Call(Operation.DELETE_TOPIC, Api.delete_topic, NO_CONTENT_STATUS),
    },
    "topics/{name}/records": {
        "GET": Call(Operation.READ_RECORDS, Api.records, query=RECORDS),
        "POST": Call(
            Operation.PUBLISH,
            publishing.publish,
            body=PublishRequest,
            body_bytes=MAX_RECORDS_BODY_BYTES,
        ),
    },
    "topics/{name}/offset": {"GET": Call(Operation.READ_RECORDS, Api.offset, query=PLACE)},
    "topics/{name}/purge": {"POST": Call(Operation.PURGE_TOPIC, Api.purge_topic)},
    "topics/{name}/dead-letters": {
        "GET": Call(Operation.READ_DEAD_LETTERS, dead_letters.dead_letters, query=LIST),
        "DELETE": Call(Operation.PURGE_DEAD_LETTERS, dead_letters.purge),
    },
    "topics/{name}/dead-letters/replay": {
        "POST": Call(
            Operation.REPLAY_DEAD_LETTER, dead_letters.replay, NO_CONTENT_STATUS, ReplayRequest
        ),
    },
    "delayed": {"GET": Call(Operation.LIST_DELAYED, delayed.delayed, query=("topic", *LIST))},
    "delayed/{name}": {
        "DELETE": Call(Operation.CANCEL_DELAYED, delayed.cancel, NO_CONTENT_STATUS),
    },
    "transactions": {
        "GET": Call(Operation.OPEN_TRANSACTION, transactions.transactions, query=LIST),
        "POST": Call(Operation.OPEN_TRANSACTION, transactions.begin, 201),
    },
    "transactions/{name}": {
        "GET": Call(Operation.OPEN_TRANSACTION, transactions.transaction),
        "DELETE": Call(Operation.END_TRANSACTION, transactions.roll_back, NO_CONTENT_STATUS),
    },
    "transactions/{name}/records": {
        "POST": Call(
            Operation.PUBLISH,
            transactions.stage,
            body=StageRequest,
            body_bytes=MAX_RECORDS_BODY_BYTES,
        ),
    },
    "transactions/{name}/abort": {
        "POST": Call(Operation.END_ANY_TRANSACTION, transactions.abort, NO_CONTENT_STATUS),
    },
    "transactions/{name}/commit": {
        "POST": Call(Operation.END_TRANSACTION, transactions.commit),
    },
    "groups": {"GET": Call(Operation.LIST_GROUPS, groups.groups, query=LIST)},
    "groups/{name}": {
        "GET": Call(Operation.LIST_GROUPS, groups.group),
        "DELETE": Call(Operation.DELETE_GROUP, groups.delete, NO_CONTENT_STATUS, query=("topic",)),
    },
    "groups/{name}/reset": {"POST": Call(Operation.RESET_GROUP, groups.reset, body=GroupReset)},
    "groups/{name}/commit": {
        "POST": Call(Operation.COMMIT_OFFSETS, groups.commit, NO_CONTENT_STATUS, GroupCommit),
    },
    "groups/{name}/join": {"POST": Call(Operation.SUBSCRIBE, groups.join, body=GroupJoin)},
    "groups/{name}/heartbeat": {
        "POST": Call(Operation.SUBSCRIBE, groups.heartbeat, body=GroupMember)
    },
    "groups/{name}/leave": {
        "POST": Call(Operation.SUBSCRIBE, groups.leave, NO_CONTENT_STATUS, GroupMember)
    },
    "whoami": {"GET": Call(Operation.KEEP_ALIVE, about.who_am_i)},
    "cluster": {"GET": Call(Operation.DESCRIBE_CLUSTER, about.cluster)},
    "schemas": {
        "GET": Call(Operation.READ_SCHEMAS, schemas.list_schemas, query=("name", *LIST)),
        "POST": Call(Operation.REGISTER_SCHEMA, schemas.register, 201, SchemaRequest),
    },
    "schemas/{name}": {
        "GET": Call(Operation.READ_SCHEMAS, schemas.show, query=("version",)),
        "PATCH": Call(Operation.CHANGE_SCHEMA, schemas.change, body=SchemaChange),
        "DELETE": Call(
            Operation.DELETE_SCHEMA, schemas.delete, NO_CONTENT_STATUS, query=("version",)
        ),
    },
    "schemas/{name}/validate": {
        "POST": Call(Operation.VALIDATE_MESSAGE, schemas.validate, body=MessageToValidate)
    },
    "felix/tenants": {
        "GET": Call(Operation.LIST_TENANTS, tenants.tenants, query=LIST),
        "POST": Call(Operation.CHANGE_TENANT, tenants.create_tenant, 201, TenantRequest),
    },
    "felix/tenants/{name}": {
        "DELETE": Call(
            Operation.CHANGE_TENANT, tenants.delete_tenant, NO_CONTENT_STATUS, query=FORCE
        ),
    },
    "felix/namespaces": {
        "GET": Call(Operation.LIST_TENANTS, tenants.namespaces, query=LIST),
        "POST": Call(Operation.CHANGE_TENANT, tenants.create_namespace, 201, TenantRequest),
    },
    "felix/namespaces/{name}": {
        "DELETE": Call(
            Operation.CHANGE_TENANT, tenants.delete_namespace, NO_CONTENT_STATUS, query=FORCE
        ),
    },
    "felix/streams": {
        "GET": Call(Operation.LIST_TENANTS, tenants.streams, query=LIST),
        "POST": Call(Operation.CREATE_TOPIC, tenants.create_stream, 201, TopicRequest),
    },
    "felix/streams/{name}": {
        "DELETE": Call(Operation.DELETE_TOPIC, tenants.delete_stream, NO_CONTENT_STATUS),
    },
    "felix/caches": {
        "GET": Call(Operation.LIST_TENANTS, tenants.caches, query=LIST),
        "POST": Call(Operation.CREATE_CACHE, tenants.create_cache, 201, TenantRequest),
    },
    "felix/caches/{name}": {
        "DELETE": Call(Operation.DELETE_CACHE, tenants.delete_cache, NO_CONTENT_STATUS),
    },
    "keys": {
        "GET": Call(Operation.LIST_KEYS, Api.keys, query=LIST),
        "POST": Call(Operation.CREATE_KEY, Api.create_key, 201, KeyRequest),
    },
    "keys/{name}": {
        "DELETE": Call(Operation.REVOKE_KEY, Api.revoke_key, NO_CONTENT_STATUS, query=FORCE),
    },
    "users": {
        "GET": Call(Operation.LIST_USERS, accounts.users, query=LIST),
        "POST": Call(Operation.CREATE_USER, accounts.create_user, 201, UserRequest),
    },
    "users/{name}": {
        "GET": Call(Operation.LIST_USERS, accounts.user),
        "PATCH": Call(Operation.CHANGE_USER, accounts.change_user, body=UserChange),
        "DELETE": Call(Operation.DELETE_USER, accounts.delete_user, NO_CONTENT_STATUS),
    },
    "users/{name}/password": {
        "POST": Call(
            Operation.CHANGE_PASSWORD, accounts.change_password, NO_CONTENT_STATUS, PasswordChange
        ),
    },
    "roles": {"GET": Call(Operation.LIST_ROLES, accounts.roles)},
    "acls": {"GET": Call(Operation.LIST_RULES, accounts.rules, query=LIST)},
    "acls/{name}": {
        "GET": Call(Operation.LIST_RULES, accounts.rule),
        "PUT": Call(Operation.CHANGE_RULE, accounts.set_rule, body=RuleRequest),
        "DELETE": Call(Operation.CHANGE_RULE, accounts.delete_rule, NO_CONTENT_STATUS),
    },
    "audit": {"GET": Call(Operation.READ_AUDIT, audit.query, query=audit.QUERY)},
    "audit/export": {"GET": Call(Operation.READ_AUDIT, audit.export, query=audit.EXPORT)},
}
