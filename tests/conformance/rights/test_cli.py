"""The table of rights at the command line: every command that asks a server, with each key.

A command decides nothing: it asks a door. So its exit code is that of the door's answer.
"""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.rights.callers import CALLERS, OTHER, OWN, STRANGER, Caller, Walk, outcome
from typer.main import get_command

from penstock.broker.access.rights import Operation
from penstock.broker.access.topic_rules import TopicRule
from penstock.cli import main as cli

NOT_AUTHORIZED = 5
NOT_FOUND = 3

# {topic} has one record at offset 0, and a rule for `acl`; {group} has an offset on it; {key} is a key to
# be revoked, or a user; {schema} a schema; {file} holds `{{}}`, which is a schema and a message.
COMMANDS: dict[str, tuple[Operation, str]] = {
    "pub": (Operation.PUBLISH, "{topic} more"),
    "sub": (Operation.SUBSCRIBE, "{topic} --idle 0.001"),
    "cat": (Operation.READ_RECORDS, "{topic}"),
    "topic ls": (Operation.LIST_TOPICS, ""),
    "topic create": (Operation.CREATE_TOPIC, "{topic}.new"),
    "topic describe": (Operation.DESCRIBE_TOPIC, "{topic}"),
    "topic delete": (Operation.DELETE_TOPIC, "{topic} --yes"),
    "topic purge": (Operation.PURGE_TOPIC, "{topic} --yes"),
    "topic set": (Operation.CHANGE_TOPIC, "{topic} durability=none"),
    "status": (Operation.DESCRIBE_CLUSTER, ""),
    "group ls": (Operation.LIST_GROUPS, ""),
    "group describe": (Operation.LIST_GROUPS, "{group}"),
    "group reset": (Operation.RESET_GROUP, "{group} --topic {topic} --to earliest"),
    "group delete": (Operation.DELETE_GROUP, "{group}"),
    "dlq ls": (Operation.READ_DEAD_LETTERS, "{topic}"),
    "dlq replay": (Operation.REPLAY_DEAD_LETTER, "{topic} 0-0"),
    "dlq purge": (Operation.PURGE_DEAD_LETTERS, "{topic} --yes"),
    "txn ls": (Operation.OPEN_TRANSACTION, ""),
    "txn show": (Operation.OPEN_TRANSACTION, "txn-0"),
    "txn abort": (Operation.END_TRANSACTION, "txn-0"),
    "delayed ls": (Operation.LIST_DELAYED, ""),
    "delayed count": (Operation.LIST_DELAYED, ""),
    "delayed cancel": (Operation.CANCEL_DELAYED, "delayed-0"),
    "felix tenant ls": (Operation.LIST_TENANTS, ""),
    "felix tenant create": (Operation.CHANGE_TENANT, "{topic}-2"),
    "felix tenant delete": (Operation.CHANGE_TENANT, "{topic} --force --yes"),
    "felix namespace ls": (Operation.LIST_TENANTS, ""),
    "felix namespace create": (Operation.CHANGE_TENANT, "{topic}/n2"),
    "felix namespace delete": (Operation.CHANGE_TENANT, "{topic}/n --force --yes"),
    "felix stream ls": (Operation.LIST_TENANTS, ""),
    "felix stream create": (Operation.CREATE_TOPIC, "{topic}/n/s2"),
    "felix stream delete": (Operation.DELETE_TOPIC, "{topic}/n/s --yes"),
    "felix cache ls": (Operation.LIST_TENANTS, ""),
    "felix cache create": (Operation.CREATE_CACHE, "{topic}/n/c2"),
    "felix cache delete": (Operation.DELETE_CACHE, "{topic}/n/c --yes"),
    "schema register": (Operation.REGISTER_SCHEMA, "{schema} {file}"),
    "schema ls": (Operation.READ_SCHEMAS, ""),
    "schema show": (Operation.READ_SCHEMAS, "{schema}"),
    "schema validate": (Operation.VALIDATE_MESSAGE, "{schema} {file}"),
    "schema bind": (Operation.CHANGE_TOPIC, "{topic} {schema}"),
    "schema unbind": (Operation.CHANGE_TOPIC, "{topic}"),
    "schema delete": (Operation.DELETE_SCHEMA, "{schema}"),
    "schema compat": (Operation.CHANGE_SCHEMA, "{schema} none"),
    "key create": (Operation.CREATE_KEY, "{key}-2"),
    "key ls": (Operation.LIST_KEYS, ""),
    "key revoke": (Operation.REVOKE_KEY, "{key}"),
    "user create": (Operation.CREATE_USER, "{key}-3"),
    "user ls": (Operation.LIST_USERS, ""),
    "user update": (Operation.CHANGE_USER, "{key} --roles reader"),
    "user enable": (Operation.CHANGE_USER, "{key}"),
    "user disable": (Operation.CHANGE_USER, "{key}"),
    "user passwd": (Operation.CHANGE_PASSWORD, "{key}"),
    "user delete": (Operation.DELETE_USER, "{key}"),
    "acl set": (Operation.CHANGE_RULE, "{topic} --users somebody"),
    "acl get": (Operation.LIST_RULES, "{topic}"),
    "acl ls": (Operation.LIST_RULES, ""),
    "acl delete": (Operation.CHANGE_RULE, "{topic}"),
    "audit ls": (Operation.READ_AUDIT, ""),
    "audit tail": (Operation.READ_AUDIT, ""),
    "audit export": (Operation.READ_AUDIT, ""),
}
# These ask no server: files of this machine, and the server itself.
LOCAL = {
    "serve",
    "version",
    "key hash",
    "config",
    "context",
    "log",
    "engine",
    "completion",
    "table",
}
# These speak Felix, and Flight by Spark: test_felix.py and test_flight.py walk those doors.
BY_OTHER_DOORS = {"cache", "pipeline", "report", "demo"}


def commands(command: object, path: tuple[str, ...] = ()) -> Iterator[str]:
    inner: dict[str, object] | None = getattr(command, "commands", None)  # of a group
    if inner is None:
        yield " ".join(path)
    for name, one in (inner or {}).items():
        yield from commands(one, (*path, name))


def test_every_command_is_in_the_table() -> None:
    found = set(commands(get_command(cli.build_app())))
    beside = LOCAL | BY_OTHER_DOORS
    asking = {name for name in found if name not in beside and name.split()[0] not in beside}
    # `list` is another word for `ls`, of the same function.
    assert {name.replace(" list", " ls") for name in asking} == set(COMMANDS)


@pytest.mark.parametrize("prefix", [OWN, OTHER])
@pytest.mark.parametrize(
    "caller", [one for one in CALLERS if one is not STRANGER], ids=lambda caller: caller.name
)
def test_every_command_needs_the_right_of_the_table(
    walk: Walk,
    caller: Caller,
    prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PENSTOCK_SERVER", f"127.0.0.1:{walk.server.port()}")
    monkeypatch.setenv("PENSTOCK_HTTP", f"http://127.0.0.1:{walk.server.port('http')}")
    monkeypatch.setenv("PENSTOCK_KEY", walk.key(caller) or "")
    file = tmp_path / "empty.json"
    file.write_text("{}")
    for name, (operation, arguments) in COMMANDS.items():
        topic, group = walk.fresh(prefix)
        key = f"cli-{group}"
        broker = walk.server.server.broker
        if name == "key revoke":
            broker.access.create_key(key, "reader")
        elif name.startswith("user "):
            broker.accounts.create_user(broker.access.anonymous, key, "pw", ())
        elif name.startswith("felix "):
            walk.felix(topic)
        elif name.startswith("acl "):
            broker.accounts.set_rule(broker.access.anonymous, topic, TopicRule())
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"password\n")))
        if "{schema}" in arguments:
            walk.server.server.broker.schemas.registry.register(f"s-{group}", "json", b"{}")
        given = arguments.format(
            topic=topic, group=group, key=key, schema=f"s-{group}", file=file
        ).split()
        code = cli.main([*name.split(), *given])
        said = capfd.readouterr().err
        allowed = outcome(caller, operation, topic) == "allowed"
        # A group is there for who may read one of its topics; no topic here has a dead letter, and there
        # are no transactions and no delayed messages.
        missing = ("group describe", "dlq replay", "txn show", "txn abort", "delayed cancel")
        hidden = name in missing and code == NOT_FOUND
        assert code == (0 if allowed else NOT_AUTHORIZED) or hidden, (name, code, said)
        if not allowed:
            assert "invalid API key" in said or "may not" in said, (name, said)
