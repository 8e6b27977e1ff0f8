"""Topics and their schemas: what the publish door asks, and where refused records go.

A topic is bound by its settings (`schema`, `schema_version`, `on_invalid`). A topic without a schema costs
one look at its settings. Lives on the event loop; `violation` may be called in a thread.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.broker.delivery.dead_letters import DEAD_LETTER_SUFFIX, ITSELF
from penstock.broker.errors import BrokerError, Code
from penstock.broker.records import Records
from penstock.broker.schemas.registry import LATEST, Registry
from penstock.broker.schemas.violations import SchemaViolation
from penstock.log.batch.builder import BatchBuilder
from penstock.log.batch.format import FLAG_PRODUCER
from penstock.log.batch.view import BatchView, Headers, view_appended
from penstock.log.engine import AppendToken, TopicInfo, walk_topics
from penstock.log.settings import TopicSettings

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

logger = logging.getLogger(__name__)

# Refused records go to this partition of the dead letters: their order is that of the refusals.
DEAD_LETTER_PARTITION: Final = 0
# Topics that a refused deletion names.
MAX_NAMED: Final = 5


class SchemaBinding:
    def __init__(self, broker: "Broker", registry: Registry) -> None:
        self._broker = broker
        self.registry = registry

    def prepare(self) -> None:
        """In a thread, before the first publish: compiles what topics are bound to. Compiled by their first
        publishes, on the event loop, they would keep everybody waiting."""
        if not len(self.registry):
            return
        for page in walk_topics(self._broker.engine):
            for info in page:
                if info.settings.schema:
                    self._compile(info)

    def _compile(self, info: TopicInfo) -> None:
        try:
            self.registry.validator(info.settings.schema, info.settings.schema_version)
        except BrokerError as error:  # publishes to this topic are refused with it
            logger.error("topic %r: %s", info.name, error)

    # --- topics -----------------------------------------------------------------------------------

    def check_settings(self, changes: dict[str, object], settings: TopicSettings) -> None:
        """Raises UNKNOWN_SCHEMA before a topic is bound to what is not there. A thread compiles it: it is
        usually there before the binding is."""
        name = str(changes.get("schema", settings.schema))
        version = changes.get("schema_version", settings.schema_version)
        if name and ("schema" in changes or "schema_version" in changes):
            schema = self.registry.get(name, version if isinstance(version, int) else LATEST)
            if not self.registry.is_compiled(name, schema.version):
                self._broker.aside(lambda: self.registry.validator(name, schema.version))

    def check_unused(self, name: str, left: Sequence[int]) -> None:
        """Raises SCHEMA_IN_USE when a topic would be left without its schema. In a thread."""
        bound = [
            info.name
            for page in walk_topics(self._broker.engine)
            for info in page
            if info.settings.schema == name
            and (not left or info.settings.schema_version not in (LATEST, *left))
        ]
        if bound:
            names = ", ".join(bound[:MAX_NAMED])
            raise BrokerError(
                Code.SCHEMA_IN_USE,
                f"schema {name!r} is bound to {names}; penstock schema unbind {bound[0]} first",
            )

    # --- records ----------------------------------------------------------------------------------

    def check(self, info: TopicInfo, records: Records) -> None:
        """Raises SchemaViolation, or UNKNOWN_SCHEMA and SCHEMAS_NOT_INSTALLED."""
        if info.settings.schema and not records.checked:
            found = self.violation(info.settings, records)
            if found is not None:
                raise found

    def violation(self, settings: TopicSettings, records: Records) -> SchemaViolation | None:
        validator = self.registry.validator(settings.schema, settings.schema_version)
        values: Sequence[bytes | None] = records.values
        if records.batch is not None:
            values = _values(view_appended(records.batch, 0))
        rows = validator.invalid(values)
        if not rows:
            return None
        diverts = settings.on_invalid == "dlq"
        return SchemaViolation(settings.schema, rows, len(values), diverts)

    def divert(
        self, topic: str, records: Records, violation: SchemaViolation, protocol: str
    ) -> AppendToken:
        """Writes the refused ones of the records to the dead letters of the topic, with the reasons."""
        self._broker.dead_letters.ensure_topic(topic)
        letters = self.letters(topic, records, violation, protocol)
        records.time_us = letters.time_us
        name, partition = dead_letter_place(topic)
        return self._broker.publish(ITSELF, name, partition, letters)

    def letters(
        self, topic: str, records: Records, violation: SchemaViolation, protocol: str
    ) -> Records:
        common = [
            (b"penstock-topic", topic.encode()),
            (b"penstock-schema", violation.schema.encode()),
            (b"penstock-protocol", protocol.encode()),
        ]
        reasons: dict[int, Headers] = {
            row: [(b"penstock-reason", reason.encode("utf-8", "replace")), *common]
            for row, reason in sorted(violation.rows.items())
        }
        return chosen(records, reasons, self._broker.clock_us())


def dead_letter_place(topic: str) -> tuple[str, int]:
    """Where the refused records of a topic go: topic and partition."""
    return topic + DEAD_LETTER_SUFFIX, DEAD_LETTER_PARTITION


def chosen(records: Records, more: Mapping[int, Headers], now_us: int) -> Records:
    """Some of the records, by their numbers, with these headers beside their own."""
    builder = BatchBuilder()
    view = None if records.batch is None else view_appended(records.batch, 0)
    for row, headers in more.items():
        if view is not None:
            value = None if view.is_null(row) else view.value(row)
            own = view.headers(row)
            builder.add(value, now_us, view.key(row), [*own, *headers], view.expiry_of(row))
        else:
            key = None if records.keys is None else records.keys[row]
            own = [] if records.headers is None else records.headers[row]
            expiry_us = 0 if records.expiries is None else records.expiries[row]
            builder.add(records.values[row], now_us, key, [*own, *headers], expiry_us)
    made = Records([], batch=builder.build())
    made.time_us = now_us
    return made


def fitting(records: Records, violation: SchemaViolation, now_us: int) -> Records | None:
    """The records that are not refused, checked; None when all are."""
    rows = violation.others()
    if not rows:
        return None
    made = chosen(records, {row: [] for row in rows}, now_us)
    made.checked = True
    old = records.batch
    if old is not None and made.batch is not None and old.flags & FLAG_PRODUCER:
        made.batch.from_producer(old.producer_id, old.epoch, old.sequence)
    return made


def _values(view: BatchView) -> Sequence[bytes | None]:
    if not view.value_validity_at:
        return view.values()
    rows = range(view.first_row, view.last_row)
    return [None if view.is_null(row) else view.value(row) for row in rows]


def both(stored: AppendToken | None, diverted: AppendToken) -> AppendToken:
    """Done when both are; tells offset and count of what was stored, and the error of either."""
    joint = AppendToken(0 if stored is None else stored.count)

    def settled(_: AppendToken) -> None:
        if not diverted.done or joint.done or (stored is not None and not stored.done):
            return
        joint.error = diverted.error
        if stored is not None:
            joint.base_offset, joint.repeated = stored.base_offset, stored.repeated
            joint.offsets = stored.offsets
            joint.error = stored.error or diverted.error
        joint.complete()

    diverted.on_done(settled)
    if stored is not None:
        stored.on_done(settled)
    return joint
