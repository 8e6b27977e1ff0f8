"""Silver: a topic decoded by the schema registry into typed columns, each event once; what cannot be
used is set aside with its reason, in a table and in the topic's dead letters.

    topic --- decodes and keeps the rules ---> <topic>_silver, deduplicated
         \\-- does not, or came too late -----> <topic>_dead_letters ---> topic <topic>.dlq

Time has two meanings here. Event time is a column of the data: it says whether a record is late, which is
asked of each record alone. Spark's watermark drops what is behind it without a word, so it goes by the
time at which a batch reads its records: nothing of a later batch is ever behind that. The broker's time
would not do. A partition that is read more slowly than others, and a transaction that is committed hours
after its records were sent, have records that are older than what was read before.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.pipeline.blocks.back import to_topic as topic_flow
from penstock.spark.pipeline.blocks.expectations import Expectation, broken
from penstock.spark.pipeline.blocks.once import first_of_each
from penstock.spark.pipeline.blocks.ready import ready
from penstock.spark.pipeline.blocks.source import reads_ranges, stream
from penstock.spark.pipeline.checkpoints.resuming import require_checkpoint
from penstock.spark.pipeline.connecting import session
from penstock.spark.pipeline.tables.formats import table_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DEFAULT_WATERMARK: Final = "1 hour"
# The header that a replayed dead letter has: topic/partition/offset of the record that it is a copy of.
ORIGIN_HEADER: Final = "penstock-origin"
COPYING_PROTOCOL: Final = "flight"
DEAD_LETTER_SUFFIX: Final = ".dlq"
# How the names of both tables end.
SILVER_TABLE: Final = "_silver"
DEAD_LETTER_TABLE: Final = "_dead_letters"
# Of the source, and not of the data.
_HIDDEN: Final = ("_key", "_headers", "_protocol", "_deleted", "_raw", "_error")
_REASON, _DROPPED, _FAILED, _READ = "_reason", "_dropped", "_failed", "_read"


def silver(
    topic: str,
    *,
    table: str | None = None,
    key: str | Sequence[str] = (),
    event_time: str | None = None,
    watermark: str = DEFAULT_WATERMARK,
    schema: str | None = None,
    expectations: Sequence[Expectation] = (),
    to_topic: bool = True,
    **options: str,
) -> bool:
    """The table `<topic>_silver` of a topic, and `<topic>_dead_letters` beside it.

    `key` and `event_time` are columns: rows that are the same in them, and are read within `watermark`
    of each other, are one event. Without a key the position of the record is what is compared, so that a
    replayed one counts once. A row that came more than `watermark` after its event time is late, and is
    set aside. `schema` names the schema where the topic is bound to none. `to_topic`: what is set aside
    goes to the topic's dead letters, too, for penstock dlq. `options` go to the source.

    False, and a note: the topic or its schema is not there yet, so that there are no tables. An update that
    finds them makes them.
    """
    from pyspark import pipelines as dp

    if not ready(topic, schema):
        return False
    name = (table or f"{topic}{SILVER_TABLE}").replace("-", "_").replace(".", "_")
    letters = f"{name.removesuffix(SILVER_TABLE)}{DEAD_LETTER_TABLE}"
    for one in (name, letters):
        require_checkpoint(one)
    given = dict(options) if schema is None else {**options, "schemaName": schema}
    keys = [key] if isinstance(key, str) else list(key)
    same = [*keys, *([event_time] if event_time else [])] if keys else ["_origin"]

    def judged() -> "DataFrame":
        return judged_rows(topic, given, expectations, event_time, watermark)

    @dp.table(name=name, **table_options())
    def clean() -> "DataFrame":
        return clean_rows(judged(), same, watermark)

    @dp.table(name=letters, **table_options())
    def set_aside() -> "DataFrame":
        return (
            judged()
            .where(f"{_REASON} IS NOT NULL")
            .selectExpr(
                f"{_REASON} AS reason",
                "_topic AS topic",
                "_partition AS partition",
                "_offset AS offset",
                "_timestamp AS timestamp",
                "_key AS key",
                "_raw AS value",
                "_headers AS headers",
                "_origin AS origin",
            )
        )

    if to_topic:
        _send(letters, topic)
    return True


def clean_rows(judged: "DataFrame", same: Sequence[str], watermark: str) -> "DataFrame":
    """Those that nothing speaks against. Of rows that are the same in these columns the first one."""
    from pyspark.sql import functions as F

    rows = judged.where(f"{_REASON} IS NULL AND {_DROPPED} IS NULL AND {_FAILED} IS NULL")
    if reads_ranges():  # isStreaming would ask Spark, which refuses that here
        return first_of_each(rows, same, watermark).drop(*_HIDDEN, _REASON, _DROPPED, _FAILED)
    # The time of the batch: Spark notes it in the checkpoint, so that a batch done again has the same.
    rows = rows.withColumn(_READ, F.current_timestamp()).withWatermark(_READ, watermark)
    rows = rows.dropDuplicatesWithinWatermark(list(same))
    return rows.drop(*_HIDDEN, _READ, _REASON, _DROPPED, _FAILED)


def judged_rows(
    topic: str,
    options: dict[str, str],
    rules: Sequence[Expectation],
    event_time: str | None,
    watermark: str,
) -> "DataFrame":
    """All rows of the topic but deletion marks, with what speaks against each."""
    from pyspark.sql import functions as F

    wanted = ["includeHeaders", "includeProtocol", "includeRaw"]
    if "schemaVersion" not in options:
        # Of a schema that evolves, no record is read without the columns that are new.
        wanted.append("failOnNewSchema")
    read = {"schema": "registry", **dict.fromkeys(wanted, "true"), **options}
    rows = stream(subscribe=topic, **read).where("NOT _deleted")
    marked = _told_origin()
    here = F.concat_ws("/", "_topic", "_partition", "_offset")
    rows = rows.withColumn("_replayed", marked.isNotNull())
    rows = rows.withColumn("_origin", F.coalesce(marked, here))
    reasons: list[Column] = [F.col("_error"), broken(rules, "dead-letter")]
    if event_time is not None:
        reasons.append(_time_problem(event_time, watermark))
    fits = F.col("_error").isNull()
    rows = rows.withColumn(_REASON, F.coalesce(*reasons))
    rows = rows.withColumn(_DROPPED, F.when(fits, broken(rules, "drop")))
    # Only the table asks for it: what is set aside is written also while the table waits for a fix.
    failed = F.when(fits, broken(rules, "fail"))
    refusal = F.raise_error(F.concat(F.lit("expectation broken at "), here, F.lit(", "), failed))
    return rows.withColumn(_FAILED, F.when(failed.isNotNull(), refusal)).drop("_replayed")


def _told_origin() -> "Column":
    """What a copy says of where the record was at first; null where that does not count.

    The broker writes replays of dead letters itself, by no protocol, and jobs with tables write theirs by
    Flight. Anywhere else the header is the word of a publisher, who could have records of others taken
    for copies of his. A copy is behind what it is a copy of.
    """
    from pyspark.sql import functions as F

    # Other headers may be there, and this one not: [0] would fail then.
    header = f"get(filter(_headers, h -> h.key = '{ORIGIN_HEADER}'), 0).value"
    told = F.expr(header).cast("string")
    partition = F.concat(F.col("_topic"), F.lit("/"), F.col("_partition"), F.lit("/"))
    offset = F.regexp_extract(told, "([0-9]+)$", 1).try_cast("bigint")
    behind = ~F.startswith(told, partition) | (offset < F.col("_offset"))
    known = F.coalesce(F.col("_protocol"), F.lit("")).isin("", COPYING_PROTOCOL)
    return F.when(known & behind, told)


def _time_problem(event_time: str, watermark: str) -> "Column":
    """A replayed record may be as old as it is: a person has looked at it."""
    from pyspark.sql import functions as F

    when: Any = F.col(event_time)
    late = F.col("_timestamp") > when + F.expr(f"INTERVAL {watermark}")
    missing = F.when(when.isNull(), F.lit(f"event time: {event_time} is missing"))
    return F.when(
        F.col("_error").isNull(),
        F.coalesce(
            missing,
            F.when(
                late & ~F.col("_replayed"),
                F.lit(f"late: {event_time} is more than {watermark} old"),
            ),
        ),
    )


def _send(letters: str, topic: str) -> None:
    """What is set aside becomes dead letters of the topic, with the headers that penstock dlq knows."""

    @topic_flow(topic + DEAD_LETTER_SUFFIX, name=f"{letters}_topic")
    def letters_of() -> "DataFrame":
        from pyspark.sql import functions as F

        def header(name: str, content: "Column") -> "Column":
            text = content.cast("string").cast("binary")
            return F.struct(F.lit(name).alias("key"), text.alias("value"))

        rows = session().readStream.table(letters)
        added = F.array(
            header("penstock-reason", F.col("reason")),
            header("penstock-topic", F.col("topic")),
            header("penstock-partition", F.col("partition")),
            header("penstock-offset", F.col("offset")),
        )
        nothing = F.array().cast("array<struct<key:string,value:binary>>")
        every = F.concat(F.coalesce("headers", nothing), added)
        return rows.select("key", "value", every.alias("headers"))
