"""The link between the server and its Flight process: frames, answers, the end of either side."""

import socket
import threading
from collections.abc import Iterator

import pytest
from kit.limits import HANG_S

from penstock.broker.access.access import Principal
from penstock.broker.errors import BrokerError, Code
from penstock.server.flight import broker as flight_broker
from penstock.server.flight.broker import BrokerLink
from penstock.server.flight.link import (
    Append,
    Appended,
    Ask,
    Failure,
    LinkClosed,
    LoggedIn,
    Login,
    Reply,
    Stop,
    from_child_decoder,
    receive,
    send,
)

SOMEBODY = Principal("somebody", "user", ("a*",), 3)


class Pair:
    """The asking end, with its listening thread, and the bare other end."""

    def __init__(self) -> None:
        ours, self.server = socket.socketpair()
        self.server.settimeout(HANG_S)
        self.link = BrokerLink(ours)
        self._ours = ours
        self.listener = threading.Thread(target=self.link.listen, daemon=True)
        self.listener.start()

    def asked(self) -> tuple[Ask, bytes]:
        content, body = receive(self.server)
        message = from_child_decoder.decode(content)
        assert isinstance(message, Ask)
        return message, body

    def close(self) -> None:
        self.server.close()
        self.listener.join(HANG_S)
        self._ours.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def append(size: int) -> tuple[Append, bytes]:
    return Append(SOMEBODY, "t", 0, 1, 0), bytes(size)


def test_answers_find_their_questions_in_any_order(pair: Pair) -> None:
    first = pair.link.ask_later(Login("one"))
    second = pair.link.ask_later(*append(100_000))
    one, _ = pair.asked()
    two, body = pair.asked()
    assert (one.question, two.question) == (Login("one"), append(0)[0])
    assert len(body) == 100_000
    assert not first.done
    send(pair.server, Reply(two.number, Appended(7, False)))
    send(pair.server, Reply(one.number, LoggedIn(SOMEBODY)))
    assert first.result(HANG_S) == LoggedIn(SOMEBODY)
    assert second.result(HANG_S) == Appended(7, False)


def test_a_frame_that_comes_byte_by_byte(pair: Pair) -> None:
    asked = pair.link.ask_later(Login(None))
    number = pair.asked()[0].number
    near, far = socket.socketpair()
    with near, far:
        send(near, Reply(number, LoggedIn(SOMEBODY)))
        frame = far.recv(10_000)
    for place in range(len(frame)):
        pair.server.sendall(frame[place : place + 1])
    assert asked.result(HANG_S) == LoggedIn(SOMEBODY)


def test_a_failure_is_raised_with_its_code(pair: Pair) -> None:
    asked = pair.link.ask_later(Login("wrong"))
    send(pair.server, Reply(pair.asked()[0].number, Failure(8, "no")))
    with pytest.raises(BrokerError, match="no") as caught:
        asked.result(HANG_S)
    assert caught.value.code is Code.NOT_AUTHENTICATED


def test_the_end_of_the_server_is_heard(pair: Pair) -> None:
    asked = pair.link.ask_later(Login(None))
    pair.server.close()
    with pytest.raises(BrokerError) as caught:
        asked.result(HANG_S)
    assert caught.value.code is Code.SHUTTING_DOWN
    pair.listener.join(HANG_S)
    with pytest.raises(BrokerError):
        pair.link.login(None, "127.0.0.1")


def test_no_answer_is_an_unknown_outcome(pair: Pair) -> None:
    asked = pair.link.ask_later(*append(10))
    with pytest.raises(BrokerError) as caught:
        asked.result(0.001)
    assert caught.value.code is Code.OUTCOME_UNKNOWN
    # A late answer is nobody's.
    send(pair.server, Reply(pair.asked()[0].number, Appended(0, False)))
    send(pair.server, Stop())
    pair.listener.join(HANG_S)
    assert not pair.listener.is_alive()


def test_bytes_on_their_way_are_bounded(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_broker, "MAX_UNANSWERED_BYTES", 1_000)
    pair.link.ask_later(*append(900))
    number = pair.asked()[0].number
    sent = threading.Event()

    def ask() -> None:
        pair.link.ask_later(*append(200))
        sent.set()

    thread = threading.Thread(target=ask)
    thread.start()
    # Questions without a body do not wait.
    small = pair.link.ask_later(Login(None))
    assert isinstance(pair.asked()[0].question, Login)
    assert not sent.is_set() and not small.done
    send(pair.server, Reply(number, Appended(0, False)))
    assert sent.wait(HANG_S)
    assert isinstance(pair.asked()[0].question, Append)
    thread.join(HANG_S)


def test_one_that_is_larger_than_the_bound_goes_alone(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_broker, "MAX_UNANSWERED_BYTES", 10)
    pair.link.ask_later(*append(5_000))
    assert len(pair.asked()[1]) == 5_000


def test_a_cut_frame_is_the_end() -> None:
    near, far = socket.socketpair()
    with far:
        with near:
            send(near, Login("key"), b"body")
        data = far.recv(10_000)
    for cut in range(len(data)):
        near, far = socket.socketpair()
        with far:
            near.sendall(data[:cut])
            near.close()
            with pytest.raises(LinkClosed):
                receive(far)
