"""What a gateway reads of its own commits, in any order of answer and echo. Needs no Kafka."""

import pytest

from penstock.kafka.echoes import LONGEST_S, MOST_OF_A_PLACE, MOST_PLACES, Echoes

GROUP, PLACE = "billing", ("orders", 0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def echoes(clock: Clock) -> Echoes:
    return Echoes(clock)


def commit(echoes: Echoes, offset: int | None) -> None:
    assert echoes.is_newest(echoes.send(GROUP, PLACE, offset))


def read(echoes: Echoes, *offsets: int | None) -> list[bool]:
    return [echoes.is_news(GROUP, PLACE, offset) for offset in offsets]


def test_commits_of_others_are_news(echoes: Echoes) -> None:
    assert read(echoes, 5, None, 7) == [True, True, True]


def test_what_comes_before_the_echo_of_an_answered_commit_is_older(echoes: Echoes) -> None:
    commit(echoes, 5)
    commit(echoes, 1_000)
    commit(echoes, 3)
    assert read(echoes, 4, 5, 1_000, 3, 6) == [False, False, False, True, True]
    assert len(echoes) == 0


def test_an_echo_before_its_answer(echoes: Echoes) -> None:
    """What another one has committed since must not be replaced by the answer."""
    sent = echoes.send(GROUP, PLACE, 5)
    assert read(echoes, 5, 9) == [True, True]
    assert not echoes.is_newest(sent)
    assert read(echoes, 10) == [True]


def test_before_the_answer_others_count(echoes: Echoes) -> None:
    sent = echoes.send(GROUP, PLACE, 5)
    assert read(echoes, 9) == [True]
    assert echoes.is_newest(sent)
    assert read(echoes, 9, 5) == [False, True]


def test_a_call_that_failed_is_not_waited_for(echoes: Echoes) -> None:
    commit(echoes, 5)
    failed = echoes.send(GROUP, PLACE, 6)
    echoes.failed(GROUP, PLACE, failed)
    assert read(echoes, 4, 5, 6, 7) == [False, True, True, True]
    echoes.failed(GROUP, PLACE, failed)
    assert len(echoes) == 0


def test_a_deletion_has_an_echo_too(echoes: Echoes) -> None:
    commit(echoes, 5)
    commit(echoes, None)
    assert read(echoes, 5, None, 8) == [False, True, True]


def test_a_deletion_with_a_commit_behind_it(echoes: Echoes) -> None:
    """As where a group is deleted on another topic: Kafka deletes whole groups."""
    commit(echoes, 4)
    commit(echoes, None)
    commit(echoes, 4)
    assert read(echoes, 4, None, 4, None) == [False, False, True, True]


def test_an_echo_that_was_compacted_away(echoes: Echoes, clock: Clock) -> None:
    commit(echoes, 5)
    commit(echoes, 6)
    assert read(echoes, 6) == [True]
    commit(echoes, 7)
    clock.now_s += LONGEST_S + 1
    assert read(echoes, 9) == [True]
    assert len(echoes) == 0


def test_places_are_apart(echoes: Echoes) -> None:
    commit(echoes, 5)
    assert echoes.is_news(GROUP, ("orders", 1), 4) and echoes.is_news("other", PLACE, 4)


def test_memory_is_bounded_when_nothing_is_read(echoes: Echoes) -> None:
    for number in range(MOST_PLACES + 10):
        echoes.send(GROUP, ("orders", number), 1)
    assert len(echoes) == MOST_PLACES
    last = ("orders", MOST_PLACES + 9)
    for offset in range(2 * MOST_OF_A_PLACE):
        assert echoes.is_newest(echoes.send(GROUP, last, offset))
    assert echoes.is_news(GROUP, last, 2 * MOST_OF_A_PLACE - 1)
