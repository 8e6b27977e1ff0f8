"""When a gateway says that Kafka is away: what librdkafka complains about, and silence. No Kafka."""

from confluent_kafka import KafkaError

from penstock.kafka.clients import SILENT_S, Trouble

ONE_AWAY = KafkaError(KafkaError._TRANSPORT, "broker 1 is away")
ALL_AWAY = KafkaError(KafkaError._ALL_BROKERS_DOWN, "3/3 brokers are down")


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_one_broker_of_several_is_no_trouble() -> None:
    clock = Clock()
    trouble = Trouble(clock)
    trouble.note(ONE_AWAY)
    assert trouble.last == ""
    trouble.note(ALL_AWAY)
    assert trouble.last == "3/3 brokers are down (broker 1 is away)"
    # What was on its way before is no answer; what was asked since is one.
    trouble.answered(clock.now_s - 1)
    assert trouble.last
    clock.now_s += 1
    trouble.answered(clock.now_s)
    assert trouble.last == ""


def test_a_question_without_an_answer_is_trouble() -> None:
    clock = Clock()
    trouble = Trouble(clock)
    clock.now_s += 60
    assert trouble.last == ""  # nobody has asked
    trouble.asking()
    clock.now_s += SILENT_S - 0.1
    trouble.asking()  # again: the first one counts
    assert trouble.last == ""
    clock.now_s += 1.1
    assert trouble.last == "Kafka has not answered for 6 s"
    trouble.note(ALL_AWAY)
    assert trouble.last == "3/3 brokers are down"
    clock.now_s += 1
    trouble.answered(clock.now_s)
    clock.now_s += 60
    assert trouble.last == ""
