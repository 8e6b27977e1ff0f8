"""Connections of the Flight process: who may have how many, how long, and send how much."""

import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from kit.flight_client import FLIGHT, flight_pid
from kit.flight_peer import Peer, wait_until
from kit.live_server import LiveServer
from pyarrow import flight

from penstock.server.flight.guard import (
    MESSAGE_BYTES,
    STRANGERS_BYTES,
    ConnectionGuard,
    Seen,
    peer_of,
    tcp_connections,
)
from penstock.server.flight.link import FlightLimits

MIB = 1024 * 1024
LIMITS = FlightLimits(1, 1, 100 * MIB, connections=4, connections_per_address=3, login_time_s=10)


class Room:
    """A guard, a clock that stands still, and connections as the kernel would tell of them."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.received: dict[str, int] = {}
        self.noted: list[str] = []
        self.guard = ConnectionGuard(LIMITS, self._seen, self._note, lambda: self.now_s)

    def _seen(self) -> Iterator[Seen]:
        for peer, count in list(self.received.items()):
            yield Seen(peer_of(peer), count, lambda peer=peer: self._cut(peer))  # type: ignore[misc]  # bound now

    def _cut(self, peer: str) -> None:
        del self.received[peer]

    def _note(self, address: str, peer: str, what: str) -> None:
        self.noted.append(f"{peer}: {what}")

    def look(self, **changes: int) -> set[str]:
        """The connections that are left."""
        self.guard.look()
        return set(self.received)


@pytest.fixture
def room() -> Room:
    return Room()


A, B, C, D, E = (f"ipv4:10.0.0.{last}:9" for last in range(1, 6))


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("ipv4:127.0.0.1:50400", ("127.0.0.1", 50400)),
        ("ipv6:[::1]:50400", ("::1", 50400)),
        ("ipv6:%5B::1%5D:50400", ("::1", 50400)),
        ("ipv6:%5B::ffff:10.0.0.1%5D:1", ("10.0.0.1", 1)),
        ("unix:", ("", 0)),
    ],
)
def test_names_of_peers(text: str, peer: tuple[str, int]) -> None:
    assert peer_of(text) == peer


def test_a_stranger_may_send_one_message(room: Room) -> None:
    room.received = {A: MESSAGE_BYTES, B: MESSAGE_BYTES + 1}
    assert room.look() == {A}
    # Calls without rights change nothing: the limit is for all of them together.
    room.guard.heard(A, may_act=False)
    room.received[A] += 1
    assert room.look() == set()
    assert room.noted[0] == (
        "10.0.0.2:9: Flight: 16777217 bytes without a call that may send them, closed"
    )
    assert room.guard.counts.open == 0
    assert room.guard.counts.cut == 2


def test_a_principal_may_send_one_message_after_the_other(room: Room) -> None:
    room.received = {A: 10}
    for _ in range(3):
        room.guard.heard(A, may_act=True)
        assert room.look() == {A}
        room.received[A] += MESSAGE_BYTES
        assert room.look() == {A}
    room.received[A] += 1
    assert room.look() == set()


def test_an_open_write_may_send_batches(room: Room) -> None:
    room.received = {A: 10}
    room.guard.heard(A, may_act=True)
    with room.guard.writing(A):
        for _ in range(3):
            room.guard.heard(A, may_act=False)
            assert room.look() == {A}
            room.received[A] += LIMITS.batch_bytes + MESSAGE_BYTES
            assert room.look() == {A}
        room.received[A] += LIMITS.batch_bytes
        assert room.look() == set()


def test_a_write_without_rights_may_not(room: Room) -> None:
    room.received = {A: MESSAGE_BYTES + 1}
    room.guard.heard(A, may_act=False)
    with room.guard.writing(A):
        assert room.look() == set()


def test_strangers_share_a_limit(room: Room) -> None:
    """The one that sent most goes first."""
    share = STRANGERS_BYTES // 4
    room.guard = ConnectionGuard(
        FlightLimits(1, 1, 1, connections=100), room._seen, room._note, lambda: room.now_s
    )
    room.received = {A: share, B: share, C: share - 10, D: share, E: 9}
    assert room.look() == {A, B, C, D, E}
    room.received[E] = 11
    assert len(room.look()) == 4 and C in room.received and E in room.received


def test_a_login_must_come_in_time(room: Room) -> None:
    room.received = {A: 0, B: 0}
    room.guard.heard(B, may_act=True)
    room.look()
    room.now_s = 9.9
    assert room.look() == {A, B}
    room.now_s = 10
    assert room.look() == {B}
    assert "no login within limits.login_time" in room.noted[0]


def test_too_many_from_one_address(room: Room) -> None:
    """The newest go, and first of all those without rights."""
    one, two, three, four = (f"ipv4:10.0.0.1:{port}" for port in range(1, 5))
    for number, peer in enumerate((one, two, three)):
        room.now_s = number
        room.received[peer] = 0
        assert peer in room.look()
    room.received[four] = 0
    room.guard.heard(four, may_act=True)
    assert room.look() == {one, two, four}
    assert "limits.connections_per_address reached" in room.noted[0]


def test_too_many_at_all(room: Room) -> None:
    room.received = dict.fromkeys((A, B, C, D), 0)
    room.look()
    room.received[E] = 0
    assert room.look() == {A, B, C, D}
    assert "limits.connections reached" in room.noted[0]


def test_a_connection_that_ended_is_forgotten(room: Room) -> None:
    room.received = {A: MESSAGE_BYTES}
    room.guard.heard(A, may_act=True)
    room.look()
    room.received = {}
    room.look()
    room.received = {A: MESSAGE_BYTES + 1}
    assert room.look() == set()


def test_the_connections_of_this_process() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
    ):
        accepted, name = listening.accept()
        with accepted:
            client.sendall(bytes(1000))
            assert len(accepted.recv(1000, socket.MSG_WAITALL)) == 1000
            (seen,) = [one for one in tcp_connections() if one.peer == name]
            assert seen.received_bytes == 1000
            seen.cut()
            assert client.recv(1) == b""


# --- against a real process ------------------------------------------------------------------------


def most_resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def action(peer: Peer, content: pa.Buffer) -> None:
    list(peer.client.do_action(flight.Action("topics", content), peer.options))


def put(peer: Peer, content: pa.Buffer) -> None:
    """The size is in what goes before the first batch."""
    descriptor = flight.FlightDescriptor.for_command(content.to_pybytes())
    writer, _ = peer.client.do_put(descriptor, pa.schema([("value", pa.binary())]), peer.options)
    writer.close()


@pytest.mark.parametrize("send", [action, put])
def test_a_huge_message_without_a_key_takes_little_memory(
    tmp_path: Path, send: Callable[[Peer, pa.Buffer], None]
) -> None:
    """Without the guard the process grew by three times the message."""
    flags = {**FLIGHT, "limits.login_time": "1 h"}
    with LiveServer(tmp_path / "data", flags) as server:
        pid = flight_pid(server)
        with Peer(server.port("flight")) as peer:
            peer.act("topics")
        before = most_resident_bytes(pid)
        with Peer(server.port("flight"), key=None) as peer, pytest.raises(pa.ArrowException):
            send(peer, pa.py_buffer(bytes(512 * MIB)))
        grown = most_resident_bytes(pid) - before
        print(f"{send.__name__}: the process grew by {grown // MIB} MiB")
        assert grown < 300 * MIB
        assert flight_pid(server) == pid
        assert wait_until(server, lambda told: told.connections.cut == 1)
        assert b"penstock_flight_cut_connections_total 1.0" in server.run(
            server.server.metrics.summary()
        )


def test_idle_connections_are_counted_and_cut(tmp_path: Path) -> None:
    flags = {**FLIGHT, "limits.login_time": "1 h", "limits.connections_per_address": "50"}
    with LiveServer(tmp_path / "data", flags) as server, Peer(server.port("flight")) as peer:
        peer.act("topics")
        idle = [
            socket.create_connection(("127.0.0.1", server.port("flight")), timeout=300)
            for _ in range(200)
        ]
        # Greetings of HTTP/2 come first; then the end, for those that are too many.
        ended = sum(_ends(one) for one in idle[100:])
        assert ended == 100
        peer.act("topics")
        for one in idle:
            one.close()


def _ends(peer: socket.socket) -> bool:
    try:
        while peer.recv(4096):
            continue
    except ConnectionResetError:
        return True
    return True


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", FLIGHT) as server:
        pid = flight_pid(server)
        with Peer(server.port("flight")) as peer:
            peer.act("topics")
            before = len(os.listdir(f"/proc/{pid}/fd"))
            for _ in range(200):
                peer.act("topics")
            assert len(os.listdir(f"/proc/{pid}/fd")) <= before + 2
