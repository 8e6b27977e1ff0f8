"""Rows that do not hold on Kafka, or say nothing there, each with its reason: they are skipped there, and
nothing else is.

A name is that of a file, of a test in it, of one case of a test, or with a `-` at its end the beginning of
cases. docs/scale-out.md has the same table in
words for users.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import pytest

QOS0: Final = (
    "Kafka has no place for the mark of a message that was published at most once, and a plain record "
    "gets no header: it is delivered as the subscription asks"
)
DISK: Final = "faults of a disk that is not there: the files are Kafka's"
FILES: Final = "looks into files of the embedded engine: here they are Kafka's"
CLUSTER: Final = (
    "the answer names the gateways and brokers of Kafka, as it should, and not one server alone"
)
FUTURE: Final = "Kafka refuses records whose time is more than an hour ahead of its own clock"
PARTITIONS: Final = (
    "a topic of two thousand partitions keeps one small broker busy for longer than a request waits"
)
APART: Final = (
    "Kafka may take the records of one publish in several parts, so they need not come together"
)
RETENTION: Final = "when old records go, Kafka decides: nobody can make it clean at once"
# As pytest writes a name of 83 signs of three bytes each.
EUROS: Final = r"\u20ac" * 83
LONG_NAME: Final = (
    "249 bytes that are no ASCII letters become 747 in the name for Kafka, which takes 249: refused "
    "with that reason"
)

NOT_ON_KAFKA: Final[Mapping[str, str]] = {
    # BlipMQ
    "blipmq/test_ack.py::test_the_tag_of_a_qos0_delivery[whole-0-1]": QOS0,
    "blipmq/test_ack.py::test_the_tag_of_a_qos0_delivery[byte by byte-0-1]": QOS0,
    "blipmq/test_ack.py::test_the_tag_of_a_qos0_delivery[with trailing bytes-0-1]": QOS0,
    "blipmq/test_delivery.py::test_the_lower_qos_counts[0-1-0]": QOS0,
    "blipmq/test_delivery.py::test_qos0_is_gone_with_its_delivery[0-1]": QOS0,
    "blipmq/test_delivery.py::test_tags_count_every_message_of_a_subscription": QOS0,
    "blipmq/test_lifetime.py::"
    "test_the_backlog_goes_to_the_first_qos1_subscriber_after_a_restart": QOS0,
    "blipmq/test_publish.py::test_a_valid_publish_is_never_answered[whole-0]": QOS0,
    "blipmq/test_publish.py::test_a_valid_publish_is_never_answered[byte by byte-0]": QOS0,
    "blipmq/test_publish.py::test_a_valid_publish_is_never_answered[with trailing bytes-0]": QOS0,
    "blipmq/test_publish.py::test_an_empty_body_is_delivered[0]": QOS0,
    "blipmq/test_publish.py::test_a_full_queue_to_the_disk_refuses": DISK,
    "blipmq/test_publish.py::test_a_write_error_refuses_what_it_hit_and_nothing_else": DISK,
    "blipmq/test_publish.py::test_a_failed_flush_stops_its_partition_only": DISK,
    "blipmq/test_publish.py::test_a_message_is_on_disk_before_anybody_gets_it": DISK,
    "blipmq/test_publish.py::test_publishes_during_a_shutdown": DISK,
    "blipmq/test_publish.py::test_a_pong_waits_until_what_was_published_is_on_disk": DISK,
    "blipmq/test_subscribe.py::test_older_messages_are_never_seen[0]": QOS0,
    "blipmq/test_process.py::test_damage_in_the_log_costs_what_is_damaged": FILES,
    "blipmq/test_process.py::test_a_segment_that_is_no_segment": FILES,
    "blipmq/test_process.py::test_a_torn_tail_is_cut_and_the_log_goes_on_behind_it": FILES,
    # Felix
    "felix/test_subscribe.py::test_events_that_come_together_share_a_frame": APART,
    # FlyMQ
    "flymq/test_every_opcode.py::test_golden_replies[CLUSTER_STATUS-": CLUSTER,
    "flymq/test_every_opcode.py::test_golden_replies[CLUSTER_METADATA-": CLUSTER,
    "flymq/test_every_opcode.py::test_bytes_behind_the_last_field_are_ignored[CLUSTER_STATUS-": CLUSTER,
    "flymq/test_golden.py::test_the_frames_of_the_documents[shared port-one_by_one-sdk]": CLUSTER,
    "flymq/test_golden.py::test_the_frames_of_the_documents[shared port-byte_by_byte-sdk]": CLUSTER,
    "flymq/test_golden.py::test_the_frames_of_the_documents[shared port-pipelined-sdk]": CLUSTER,
    "flymq/test_golden.py::test_the_frames_of_the_documents[own port-one_by_one-sdk]": CLUSTER,
    "flymq/test_golden.py::test_the_frames_of_the_documents[own port-byte_by_byte-sdk]": CLUSTER,
    "flymq/test_golden.py::test_the_frames_of_the_documents[own port-pipelined-sdk]": CLUSTER,
    "flymq/test_golden.py::test_the_frames_of_the_documents[TLS-one_by_one-sdk]": CLUSTER,
    "flymq/test_golden.py::test_the_frames_of_the_documents[TLS-byte_by_byte-sdk]": CLUSTER,
    "flymq/test_golden.py::test_the_frames_of_the_documents[TLS-pipelined-sdk]": CLUSTER,
    "flymq/test_produce.py::test_the_status_of_the_cluster": CLUSTER,
    "flymq/test_produce.py::test_the_address_that_clients_are_told": CLUSTER,
    "flymq/test_promises.py::test_a_clock_that_jumps": FUTURE,
    "flymq/test_promises.py::test_answers_that_grow_are_encoded_beside_the_event_loop": PARTITIONS,
    # RustLog
    "rustlog/test_fetch.py::test_before_the_first_kept_record": RETENTION,
    f"rustlog/test_admin.py::test_topic_names[J-{EUROS}]": LONG_NAME,
    f"rustlog/test_admin.py::test_topic_names[B-{EUROS}]": LONG_NAME,
    "rustlog/test_produce.py::test_a_full_disk_stores_nothing_and_says_so": DISK,
}

ROOT: Final = "tests/conformance/"


def reason_for(node: str) -> str | None:
    """Why this test is not run on Kafka."""
    name = node.removeprefix(ROOT)
    path, _, test = name.partition("::")
    whole = f"{path}::{test.partition('[')[0]}"
    for listed in (name, whole, path):
        if listed in NOT_ON_KAFKA:
            return NOT_ON_KAFKA[listed]
    for beginning, reason in NOT_ON_KAFKA.items():
        if beginning.endswith("-") and name.startswith(beginning):
            return reason
    return None


def skip_on_kafka(items: Iterable[pytest.Item]) -> None:
    for item in items:
        reason = reason_for(item.nodeid)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=f"on Kafka: {reason}"))
