"""The FlyMQ client: users, passwords and rules of topics, and the login after a change of password."""

from pathlib import Path

import pytest
from kit.live_server import LiveServer

from penstock.client.errors import NotAuthorized, Refused
from penstock.client.flymq import connect_flymq
from penstock.wire.flymq.administration import AuditQuery


@pytest.mark.parametrize("dialect", ["spec", "sdk"])
def test_users_and_rules(tmp_path: Path, dialect: str) -> None:
    with LiveServer(tmp_path, {"flymq.dialect": dialect}) as server:
        broker = server.server.broker
        broker.accounts.create_user(broker.access.anonymous, "root", "pw", ["admin"])
        address = f"127.0.0.1:{server.port()}"
        with connect_flymq(address, user="root", key="pw") as root:
            root.create_user("al", "first", ["guest"])
            assert root.describe_user("al").roles == ["guest"]
            assert [one.name for one in root.list_users()] == ["al", "root"]
            root.produce("news", b"v")
            with connect_flymq(address, user="al", key="first") as al:
                with pytest.raises(NotAuthorized):
                    al.fetch("news", 0, 0)
                root.set_rule("n*", users=["al"], roles=["producer"])
                assert al.fetch("news", 0, 0).messages[0].value == b"v"
                rule = root.describe_rule("n*")
                assert (rule.exists, rule.public, rule.users, rule.roles) == (
                    True,
                    False,
                    ["al"],
                    ["producer"],
                )
                assert [one.topic for one in root.list_rules()] == ["n*"]
                al.change_password("al", "second", "first")
                assert al.fetch("news", 0, 0).messages[0].value == b"v"
                root.delete_rule("n*")
                assert not root.describe_rule("n*").exists
                root.update_user("al", ["consumer"])
                assert al.fetch("news", 0, 0).messages[0].value == b"v"
                root.update_user("al", ["consumer"], enabled=False)
                with pytest.raises(NotAuthorized, match="disabled"):
                    al.fetch("news", 0, 0)
                root.update_user("al", ["consumer"])
                with pytest.raises(Refused, match="invalid current password"):
                    al.change_password("al", "third", "first")
            root.delete_user("al")
            with pytest.raises(Refused, match='user "al" not found'):
                root.describe_user("al")
            assert [one.name for one in root.list_roles()] == [
                "admin",
                "producer",
                "consumer",
                "guest",
            ]


def test_after_its_new_password_it_logs_in_with_that(tmp_path: Path) -> None:
    """Also when the connection was lost in between."""
    with LiveServer(tmp_path) as server:
        broker = server.server.broker
        broker.accounts.create_user(broker.access.anonymous, "root", "old", ["admin"])
        with connect_flymq(f"127.0.0.1:{server.port()}", user="root", key="old") as root:
            root.change_password("root", "new", "old")
            for connection in list(server.server.hub.connections):
                server.call(connection.abort)
            assert root.who_am_i().user == "root"


def test_the_audit_trail(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as server:
        address = f"127.0.0.1:{server.port()}"
        with connect_flymq(address) as client:
            client.create_topic("orders")
            found = client.query_audit(types=["topic.*"])
            (event,) = found.events
            assert (event.type, event.resource, found.total) == ("topic.create", "orders", 1)
            exported = client.export_audit(AuditQuery(resource="orders"), "csv")
            assert exported.splitlines()[1].startswith(event.id.encode())
