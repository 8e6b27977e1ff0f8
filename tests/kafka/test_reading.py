"""What of a consumer's messages belongs to one read."""

import pytest
from confluent_kafka import KafkaError, Message

from penstock.kafka.reading import up_to_error


def message(offset: int, error: int | None = None) -> Message:
    failure = None if error is None else KafkaError(error)
    return Message(topic="t", partition=0, offset=offset, value=b"x", error=failure)


END = KafkaError._PARTITION_EOF
GONE = KafkaError._TRANSPORT


@pytest.mark.parametrize(
    ("errors", "taken"),
    [
        ([None, None], 2),
        ([None, END], 2),
        # What stands behind the news of an end was written later, and is read again from there.
        ([None, END, None, None], 2),
        ([None, GONE, None], 1),
        ([END, None], 1),
    ],
)
def test_up_to_the_first_error(errors: list[int | None], taken: int) -> None:
    messages = [message(number, error) for number, error in enumerate(errors)]
    assert up_to_error(messages) == messages[:taken]
