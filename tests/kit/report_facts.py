"""Facts of a report, for tests of its page: a day of a shop, and the worst that names can be."""

import math
from dataclasses import replace

from penstock.spark.report.facts import (
    GroupLag,
    Groups,
    KeyCount,
    Reason,
    Reasons,
    Report,
    Series,
    TopicKeys,
    TopicTotals,
    Traffic,
)

DAY_S = 86_400
# 2026-11-17 06:00 UTC.
START_S = 1_794_895_200
WIDTH_S = 600
BARS = 144

# What a peer can put into a name, a key or a reason.
HOSTILE = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "</title></svg></style><h1>out</h1>",
    "a\x00b\x1b[31m\nc\td\x7f\x85",
    "\u202egnp.exe\u2066\u200f\u061c\ufeff\u200b",
    "&lt;b&gt; &amp; ]]> <!-- -->",
    "שלום مرحبا",
    "x" * 5_000,
    "\ud800 \U000e0001 \uffff",
    "",
)


def wave(high: float, phase: float, bars: int = BARS) -> tuple[int, ...]:
    """A day with a quiet night, and something that looks like noise."""
    return tuple(
        max(0, round(high * (1.15 + math.sin(2 * math.pi * (bar / bars + phase))) / 2.15)
            + round(high / 14 * math.sin(bar * 12.9898 + phase * 78.233) ** 3))
        for bar in range(bars)
    )  # fmt: skip


def shop() -> Report:
    """What a reader of the documents sees."""
    highs = {
        "clicks": (92_000, 240),
        "orders": (41_000, 610),
        "telemetry.devices": (36_000, 96),
        "payments": (17_000, 380),
        "inventory": (9_500, 150),
        "emails": (5_200, 2_900),
        "search-queries": (4_100, 70),
        "alerts": (1_300, 120),
        None: (2_600, 200),
    }
    by_topic = tuple(
        Series(name, numbers, tuple(number * mean for number in numbers))
        for place, (name, (high, mean)) in enumerate(highs.items())
        for numbers in [wave(high, 0.71 + place * 0.03)]
    )
    protocols = {
        "blipmq": 0.41,
        "flymq": 0.23,
        "rustlog": 0.14,
        "felix": 0.1,
        "fujin": 0.07,
        "flight": 0.03,
        "http": 0.02,
    }
    records = [sum(bar) for bar in zip(*(one.records for one in by_topic), strict=True)]
    sizes = [sum(bar) for bar in zip(*(one.payload_bytes for one in by_topic), strict=True)]
    by_protocol = tuple(
        Series(
            name,
            tuple(int(n * part) for n in records),
            tuple(int(n * part) for n in sizes),
        )
        for name, part in protocols.items()
    )
    topics = [
        TopicTotals(
            one.name,
            sum(one.records),
            sum(one.payload_bytes),
            7_000 + 900 * place,
            [12, 6, 24, 6, 4, 2, 4, 1][place],
            int(sum(one.records) * [0.09, 0.31, 0.045, 0.18, 0.27, 0.5, 0.26, 1][place]),
        )
        for place, one in enumerate(by_topic)
        if one.name is not None
    ]
    topics.sort(key=lambda one: -one.records)
    whole = sum(records)
    bell = {
        bits: round(whole * math.exp(-((bits - 8.2) ** 2) / 3.4) / 3.26) for bits in range(3, 14)
    }
    traffic = Traffic(
        first_us=START_S * 1_000_000 + 412_000,
        last_us=(START_S + BARS * WIDTH_S - 1) * 1_000_000,
        start_s=START_S,
        width_s=WIDTH_S,
        records=whole,
        payload_bytes=sum(sizes),
        largest_bytes=13_900,
        null_values=1_204,
        topic_count=11,
        partition_count=64,
        topics=tuple(topics),
        by_topic=by_topic,
        by_protocol=by_protocol,
        sizes=bell,
        keys=tuple(
            TopicKeys(
                one.name,
                one.records,
                different,
                slack,
                tuple(
                    KeyCount(key.encode(), int(one.records * part))
                    for key, part in zip(names, parts, strict=True)
                ),
            )
            for one, names, parts, different, slack in (
                (topics[0], ("session-1f", "session-9c", "session-a4", "session-07", "session-e1"),
                 (0.0021, 0.0019, 0.0018, 0.0018, 0.0017), 2_048, 1_940),
                (topics[1], ("tenant-acme", "tenant-globex", "tenant-initech", "tenant-umbra", "hooli"),
                 (0.34, 0.12, 0.07, 0.05, 0.04), 412, 0),
                (topics[2], ("sensor-0042", "sensor-0007", "sensor-0113", "sensor-0001", "sensor-0088"),
                 (0.011, 0.0108, 0.0107, 0.0104, 0.0101), 1_100, 0),
            )
        ),
        letters=Reasons(
            4_871,
            (
                Reason("orders", "/amount: -3 is less than the minimum of 0", 2_412),
                Reason("payments", "max deliveries reached", 1_204),
                Reason("telemetry.devices", "late: measured_at is more than 1 hour old", 733),
                Reason("orders", '"customer" is a required property', 311),
                Reason("clicks", "a rule: page is not empty", 96),
            ),
        ),
        refusals=Reasons(
            318,
            (
                Reason("http", "auth.failure, key", 201),
                Reason("flymq", "auth.denied, PRODUCE, role viewer", 88),
                Reason("blipmq", "auth.failure, key", 29),
            ),
        ),
    )  # fmt: skip
    last_us = traffic.last_us
    groups = Groups(
        7,
        tuple(
            GroupLag(name, topic, partitions, lag, worst, last_us - ago_s * 1_000_000)
            for name, topic, partitions, lag, worst, ago_s in (
                ("billing", "payments", 6, 182_340, 171_009, 3_420),
                ("search-index", "inventory", 4, 24_118, 8_990, 64),
                ("spark-penstock-source-7f1c", "clicks", 12, 9_244, 1_020, 2),
                ("mailer", "emails", 2, 310, 170, 1),
                ("fraud-watch", "orders", 6, 41, 12, 1),
                ("fraud-watch", "payments", 6, 18, 9, 1),
                ("dashboards", "clicks", 12, 0, 0, 0),
            )
        ),
    )
    return Report(
        server="broker.example:8815",
        version="0.1.0",
        made_us=last_us + 21_000_000,
        pattern="",
        from_us=START_S * 1_000_000,
        to_us=(START_S + DAY_S) * 1_000_000,
        job_s=14.2,
        traffic=traffic,
        groups=groups,
    )


def hostile() -> Report:
    """Every foreign text is one of HOSTILE."""
    report = shop()
    traffic = report.traffic
    names = (*HOSTILE, *HOSTILE)
    return replace(
        report,
        server=HOSTILE[0],
        pattern="".join(HOSTILE),
        traffic=replace(
            traffic,
            topics=tuple(
                replace(traffic.topics[place % 8], name=name) for place, name in enumerate(HOSTILE)
            ),
            by_topic=tuple(
                one if one.name is None else replace(one, name=names[place])
                for place, one in enumerate(traffic.by_topic)
            ),
            by_protocol=tuple(
                replace(one, name=names[place]) for place, one in enumerate(traffic.by_protocol)
            ),
            keys=tuple(
                TopicKeys(
                    name,
                    10,
                    2,
                    0,
                    (KeyCount(name.encode("utf-8", "surrogatepass"), 6), KeyCount(b"\xff\x00", 4)),
                )
                for name in HOSTILE
            ),
            letters=Reasons(100, tuple(Reason(name, name, 10) for name in HOSTILE)),
            refusals=Reasons(100, tuple(Reason(name, name, 10) for name in HOSTILE)),
        ),
        groups=Groups(10, tuple(GroupLag(name, name, 1, 1, 1, 0) for name in HOSTILE)),
    )


def quiet() -> Report:
    """One record, and nothing else."""
    report = shop()
    traffic = Traffic(
        first_us=START_S * 1_000_000,
        last_us=START_S * 1_000_000,
        start_s=START_S,
        width_s=1,
        records=1,
        payload_bytes=0,
        largest_bytes=0,
        null_values=1,
        topic_count=1,
        partition_count=1,
        topics=(TopicTotals("a", 1, 0, 0, 1, 1),),
        by_topic=(Series("a", (1,), (0,)),),
        by_protocol=(Series("", (1,), (0,)),),
        sizes={},
        keys=(),
        letters=Reasons(),
        refusals=Reasons(),
    )
    return replace(report, traffic=traffic, groups=Groups(problem="cannot connect"))
