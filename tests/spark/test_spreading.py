"""Which server a task talks to, and to which it goes on. No Spark and no server."""

import pickle

import pytest

from penstock.broker.access.principal import Origin, Principal
from penstock.client.errors import ConnectFailed
from penstock.client.flight import FlightClient
from penstock.log.engine import ClusterView, Node
from penstock.server.flight.describing import flight_servers
from penstock.spark.connection import Connection, resolve
from penstock.spark.options import OptionError, read_options
from penstock.spark.ranges import Range
from penstock.spark.spreading import MOST_NAMED, servers_for, servers_of, spread

A, B, C = "a:8815", "b:8815", "c:8815"


def test_tasks_take_turns_and_know_where_to_go_on() -> None:
    turns = [servers_for(number, (A, B, C), (A,)) for number in range(4)]
    assert turns == [(A, B, C), (B, C, A), (C, A, B), (A, B, C)]
    # Who is given and not named, such as a load balancer, is the last resort.
    assert servers_for(1, (A, B), ("balancer:1",)) == (B, A, "balancer:1")
    many = tuple(f"g{number}:1" for number in range(9))
    assert servers_for(7, many, ("g0:1",)) == ("g7:1", "g8:1", "g0:1", "g1:1")
    assert len(servers_for(3, many, (A,))) == MOST_NAMED + 1


@pytest.mark.parametrize("named", [(), (A,)])
def test_a_server_alone_changes_nothing(named: tuple[str, ...]) -> None:
    ranges = (Range("t", 0, 0, 9, 1),)
    (task,) = spread([ranges], named, (A,))
    assert task.value == ranges and servers_of(task) == ()
    connection = Connection(A, "key")
    assert connection.at(servers_of(task)) is connection
    assert servers_of(None) == ()


def test_a_task_takes_its_servers_along() -> None:
    task = spread([(Range("t", 0, 0, 9, 1),)] * 2, (A, B), (A,))[1]
    assert servers_of(pickle.loads(pickle.dumps(task))) == (B, A)


class Watched(Connection):
    """Every server is away; notes who was tried, and the pauses."""

    tried: list[str] = []  # noqa: RUF012  # of all of them: they are made anew for each server

    def client(self) -> FlightClient:
        self.tried.append(self.server)
        raise ConnectFailed(self.server, "nobody")

    def wait(self) -> None:
        self.tried.append("pause")


@pytest.mark.parametrize(
    ("others", "retries", "tried"),
    [
        ((), 0, [A]),
        ((), 2, [A, "pause", A, "pause", A]),
        ((B,), 0, [A, B]),
        ((B, C), 1, [A, B, C, "pause", A, B, C]),
    ],
)
def test_all_servers_are_tried_before_a_pause(
    others: tuple[str, ...], retries: int, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watched, "tried", [])
    with pytest.raises(ConnectFailed, match=tried[-1]):
        Watched(A, retries=retries, others=others).call(lambda client: None)
    assert Watched.tried == tried


def test_the_options() -> None:
    def connection(**given: str) -> Connection:
        return resolve(read_options({"subscribe": "t", **given}, streaming=False).connection)

    one = connection(server=A)
    assert one.servers == (A,) and one.spread
    some = connection(server=f"{A}, {B}", spread="false")
    assert some.servers == (A, B) and not some.spread
    for wrong in (f"{A},", f"{A},b c"):
        with pytest.raises(OptionError, match="is no address host:port"):
            connection(server=wrong)


def test_what_a_gateway_names() -> None:
    """Addresses of the loopback interface go to those who are on the same one."""

    def named(peer: str, *nodes: Node) -> tuple[str, ...]:
        return flight_servers(
            ClusterView("kafka", "id", "1", nodes), Principal("p", "admin", origin=Origin("", peer))
        )

    here = Node("1", "", flight="127.0.0.1:1", loopback="x")
    near = Node("2", "", flight="[::1]:2", loopback="x")
    far = Node("3", "", flight="127.0.0.1:3", loopback="y")
    open_ = Node("4", "", flight="g4.example.org:8815", loopback="y")
    without = Node("5", "", loopback="y")
    broker = Node("broker-1", "", cluster_address="k:9092")
    assert named("127.0.0.1", here, near, far, open_, without, broker) == (
        "127.0.0.1:1",
        "[::1]:2",
        "g4.example.org:8815",
    )
    assert named("::1", here, far, without, broker) == ()
    assert named("10.0.0.9", here, near, open_) == ()
    other = Node("6", "", flight="g6.example.org:8815")
    assert named("10.0.0.9", here, open_, other) == ("g4.example.org:8815", "g6.example.org:8815")
