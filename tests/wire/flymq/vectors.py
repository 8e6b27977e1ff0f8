"""Frames of FlyMQ as the protocol documents write them, and what they say.

Hex is that of the documents, blanks and all; "text" in it stands for its bytes. Where the documents show no
bytes for an opcode (their tables show fields only), the frame was written by hand from the table.
"""

from dataclasses import dataclass
from typing import Literal

from conformance.flymq.peer import raw

from penstock.wire.flymq import administration as a
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.frames import SDK, SPEC
from penstock.wire.flymq.layout import Message

BOTH = (SPEC, SDK)
TIME_MS = 1_705_123_456_000


@dataclass(frozen=True, slots=True)
class Vector:
    opcode: int
    side: Literal["request", "reply"]
    frame: bytes
    message: Message
    dialects: tuple[int, ...] = BOTH

    def __str__(self) -> str:
        return f"{self.opcode:02x}-{self.side}-{type(self.message).__name__}"


def ask(opcode: int, text: str, message: Message, dialects: tuple[int, ...] = BOTH) -> Vector:
    return Vector(opcode, "request", raw(text), message, dialects)


def told(opcode: int, text: str, message: Message, dialects: tuple[int, ...] = BOTH) -> Vector:
    return Vector(opcode, "reply", raw(text), message, dialects)


OK = m.Ok(True, "OK")
_AL = a.User("al", ["consumer"], [], True, 0x65A21E80, 0x65A21E80)
_QUERY = a.AuditQuery(0, 0, [], "al", "", "", "", 100, 0)
_EVENT = a.AuditEvent("e", TIME_MS, "t", "al", "", "", "", "", "n1", [a.AuditDetail("k", "v")])

CORE = [
    ask(
        0x01,
        "AF 01 01 01 00000011  0001 74  00000001 6B  00000001 76  FFFFFFFF",
        m.Produce("t", b"k", b"v", -1),
    ),
    told(
        0x01,
        "AF 01 01 01 0000001F  0001 74  00000000  000000000000002A  0000018D01472400  00000001  00000001",
        m.RecordMetadata("t", 0, 42, TIME_MS, 1, 1),
    ),
    ask(0x02, "AF 01 02 01 0000000F  0001 74  00000000  000000000000002A", m.Consume("t", 0, 42)),
    told(0x02, "AF 01 02 01 0000000A  00000001 6B  00000001 76", m.Consumed(b"k", b"v")),
    ask(0x03, "AF 01 03 01 00000007  0001 74  00000003", m.CreateTopic("t", 3)),
    told(0x03, "AF 01 03 01 00000005  01 0002 4F4B", OK),
    ask(0x04, "AF 01 04 01 00000003  0001 74", m.Topic("t")),
    told(
        0x04,
        "AF 01 04 01 0000001F  0001 74  00000001  00000000 00000000 0000000000000000 000000000000002A",
        m.TopicMetadata("t", [m.PartitionEnds(0, 0, 0, 42)]),
    ),
    ask(
        0x05,
        "AF 01 05 01 00000012  0001 74  0001 67  00000000  0006 6C6174657374",
        m.Subscribe("t", "g", 0, "latest"),
        (SPEC,),
    ),
    ask(
        0x05,
        "AF 01 05 01 00000011  0001 74  0001 67  00000000  06 6C6174657374",
        m.Subscribe("t", "g", 0, "latest"),
        (SDK,),
    ),
    told(0x05, "AF 01 05 01 00000008  000000000000002B", m.Offset(43)),
    ask(
        0x06,
        "AF 01 06 01 00000012  0001 74  0001 67  00000000  000000000000002B",
        m.Commit("t", "g", 0, 43),
    ),
    told(0x06, "AF 01 06 01 00000005  01 0002 4F4B", OK),
    ask(
        0x07,
        "AF 01 07 01 00000013  0001 74  00000000  000000000000002A  0000000A",
        m.Fetch("t", 0, 42, 10),
        (SPEC,),
    ),
    ask(
        0x07,
        "AF 01 07 01 00000015  0001 74  00000000  000000000000002A  0000000A  0000",
        m.Fetch("t", 0, 42, 10, ""),
        (SDK,),
    ),
    told(
        0x07,
        "AF 01 07 01 0000001E  00000001  00000001 6B 00000001 76 000000000000002A  000000000000002B",
        m.Fetched([m.SpecFetchedMessage(b"k", b"v", 42)], 43),
        (SPEC,),
    ),
    told(
        0x07,
        "AF 01 07 01 0000001E  00000001 000000000000002B  000000000000002A 00000001 6B 00000001 76",
        m.SdkFetched((m.FetchedAt(43), [m.FetchedMessage(42, b"k", b"v")])),
        (SDK,),
    ),
    ask(0x08, "AF 01 08 01 00000000", m.Nothing()),
    told(0x08, "AF 01 08 01 0000000B  00000002  0001 61  0002 6263", m.Names(["a", "bc"])),
    ask(0x09, "AF 01 09 01 00000003  0001 74", m.Topic("t")),
    told(0x09, "AF 01 09 01 00000005  01 0002 4F4B", OK),
    ask(0x0A, "AF 01 0A 01 0000000F  0001 74  00000000  000000000000002A", m.Consume("t", 0, 42)),
    told(0x0A, "AF 01 0A 01 0000000A  00000001 6B  00000001 76", m.Consumed(b"k", b"v")),
    ask(
        0x0B,
        "AF 01 0B 01 00000013  0001 74  00000000  000000000000002A  0000000A",
        m.Fetch("t", 0, 42, 10),
    ),
    told(
        0x0B,
        "AF 01 0B 01 0000001E  00000001 000000000000002B  000000000000002A 00000001 6B 00000001 76",
        m.SdkFetched((m.FetchedAt(43), [m.FetchedMessage(42, b"k", b"v")])),
    ),
]

SCHEMAS = [
    ask(
        0x10,
        "AF 01 10 01 0000000E  0001 75  04 6A736F6E  00000002 7B7D",
        a.RegisterSchema("u", "json", b"{}"),
    ),
    told(0x10, "AF 01 10 01 0000000C  0001 75  04 6A736F6E  00000001", a.SchemaRow("u", "json", 1)),
    ask(0x11, "AF 01 11 01 00000007  0001 75  00000000", a.SchemaVersion("u", 0)),
    told(
        0x11,
        "AF 01 11 01 00000027  00000001  0001 75  04 6A736F6E  00000001"
        ' 00000002 7B7D  08 "backward"  0000018D01472400',
        a.Schema([a.SchemaRow("u", "json", 1)], b"{}", "backward", TIME_MS),
    ),
    ask(0x12, "AF 01 12 01 00000002  0000", a.SchemaFilter("")),
    told(
        0x12,
        "AF 01 12 01 00000010  00000001  0001 75  04 6A736F6E  00000001",
        a.SchemaRows([a.SchemaRow("u", "json", 1)]),
    ),
    ask(0x13, "AF 01 13 01 00000009  0001 75  00000002 7B7D", a.ValidateSchema("u", b"{}")),
    told(
        0x13,
        'AF 01 13 01 00000020  00  00000001  0019 "missing required field: a"',
        a.Validity(False, ["missing required field: a"]),
    ),
    told(0x13, "AF 01 13 01 00000005  01  00000000", a.Validity(True, [])),
    ask(
        0x14,
        "AF 01 14 01 0000000C  0001 74  0001 75  00000002 7B7D",
        a.ProduceWithSchema("t", "u", b"{}"),
        (SPEC,),
    ),
    ask(
        0x14,
        "AF 01 14 01 0000000C  0001 74  00000002 7B7D  0001 75",
        a.SdkProduceWithSchema("t", b"{}", "u"),
        (SDK,),
    ),
    told(
        0x14,
        "AF 01 14 01 0000001F  0001 74  00000000  000000000000002A  0000018D01472400  FFFFFFFF  00000002",
        m.RecordMetadata("t", 0, 42, TIME_MS, -1, 2),
    ),
    ask(0x15, "AF 01 15 01 00000007  0001 75  00000001", a.SchemaVersion("u", 1)),
    told(0x15, "AF 01 15 01 00000005 01 0002 4F4B", OK),
]

QUEUES = [
    ask(0x20, "AF 01 20 01 00000007  0001 74  0000000A", a.FetchDeadLetters("t", 10)),
    told(
        0x20,
        "AF 01 20 01 00000017  00000001  0002 6D31  00000001 76  0004 626F6F6D  00000003",
        a.DeadLetters([a.DeadLetter("m1", b"v", "boom", 3)]),
    ),
    ask(0x21, "AF 01 21 01 00000007  0001 74  0002 6D31", a.ReplayById("t", "m1")),
    ask(0x21, "AF 01 21 01 0000000B  0001 74  0000000000000005", a.ReplayByOffset("t", 5)),
    ask(0x21, 'AF 01 21 01 0000000B  0001 74  0006 "abcdef"', a.ReplayById("t", "abcdef")),
    told(0x21, "AF 01 21 01 00000005 01 0002 4F4B", OK),
    ask(0x22, "AF 01 22 01 00000003  0001 74", m.Topic("t")),
    told(0x22, "AF 01 22 01 00000005 01 0002 4F4B", OK),
    ask(
        0x30,
        "AF 01 30 01 00000010  0001 74  00000001 76  0000000000001388",
        a.ProduceDelayed("t", b"v", 5000),
    ),
    told(
        0x30,
        "AF 01 30 01 0000001F  0001 74  00000000  0000000000000000  0000018D01472400  FFFFFFFF  00000001",
        m.RecordMetadata("t", 0, 0, TIME_MS, -1, 1),
    ),
    ask(0x31, 'AF 01 31 01 0000000C  000A "delayed-17"', a.CancelDelayed("delayed-17")),
    ask(0x31, "AF 01 31 01 0000000B  0001 74  0000000000000011", a.CancelDelayedOf("t", 17)),
    told(0x31, "AF 01 31 01 00000005 01 0002 4F4B", OK),
    ask(
        0x35,
        "AF 01 35 01 00000010  0001 74  00000001 76  000000000000EA60",
        a.ProduceWithTtl("t", b"v", 60_000),
    ),
    told(
        0x35,
        "AF 01 35 01 0000001F  0001 74  00000000  000000000000002A  0000018D01472400  FFFFFFFF  00000001",
        m.RecordMetadata("t", 0, 42, TIME_MS, -1, 1),
    ),
    ask(0x40, "AF 01 40 01 00000000", m.Nothing()),
    told(0x40, "AF 01 40 01 00000008  0005 74786E2D31  01", a.TransactionDone("txn-1", True)),
    ask(0x41, "AF 01 41 01 00000007  0005 74786E2D31", a.Transaction("txn-1")),
    told(0x41, "AF 01 41 01 00000008  0005 74786E2D31  01", a.TransactionDone("txn-1", True)),
    ask(0x42, "AF 01 42 01 00000007  0005 74786E2D31", a.Transaction("txn-1")),
    told(0x42, "AF 01 42 01 00000008  0005 74786E2D31  00", a.TransactionDone("txn-1", False)),
    ask(
        0x43,
        "AF 01 43 01 0000000F  0005 74786E2D31  0001 74  00000001 76",
        a.TransactionProduce("txn-1", "t", b"v"),
    ),
    told(
        0x43,
        "AF 01 43 01 0000001F  0001 74  00000000  0000000000000000  0000018D01472400  FFFFFFFF  00000001",
        m.RecordMetadata("t", 0, 0, TIME_MS, -1, 1),
    ),
]

CLUSTER = [
    ask(0x50, "AF 01 50 01 00000009  0007 6E323A39303933", m.ClusterJoin("n2:9093")),
    told(0x50, "AF 01 50 01 00000005 01 0002 4F4B", OK),
    ask(0x51, "AF 01 51 01 00000000", m.Nothing()),
    told(0x51, "AF 01 51 01 00000005 01 0002 4F4B", OK),
    ask(0x52, "AF 01 52 01 00000000", m.Nothing()),
    told(
        0x52,
        'AF 01 52 01 00000032  000A "standalone"  0002 "n1"  0000000000000001  00000001'
        ' 0002 "n1"  0005 ":9092"  0000  0006 "online"  01',
        m.ClusterStatus("standalone", "n1", 1, [m.Node("n1", ":9092", "", "online", True)]),
    ),
    ask(0x53, "AF 01 53 01 00000003  0001 74", m.ClusterMetadataOf("t"), (SDK,)),
    told(
        0x53,
        'AF 01 53 01 00000046  000A "standalone"  00000001  0001 74  00000001  00000000'
        " 0002 6E31 0005 3A39303932"
        " 0000000000000001 0006 6F6E6C696E65 00000001 0002 6E31 00000001 0002 6E31",
        m.ClusterMetadata(
            "standalone",
            [
                m.ClusterTopic(
                    "t", [m.ClusterPartition(0, "n1", ":9092", 1, "online", ["n1"], ["n1"])]
                )
            ],
        ),
    ),
]

_ROW = m.GroupRow("t", "g", 1, [m.CommittedOffset(0, 43)])
GROUPS = [
    ask(0x60, "AF 01 60 01 0000000A  0001 74  0001 67  00000000", m.GroupPartition("t", "g", 0)),
    told(0x60, "AF 01 60 01 00000008 000000000000002B", m.Offset(43)),
    ask(
        0x61,
        "AF 01 61 01 00000019  0001 74  0001 67  00000000  06 6F6666736574  0000000000000007",
        m.ResetOffset("t", "g", 0, "offset", 7),
        (SDK,),
    ),
    ask(
        0x61,
        "AF 01 61 01 00000014  0001 74  0001 67  00000000  0008 6561726C69657374",
        m.ResetOffset("t", "g", 0, "earliest"),
        (SPEC,),
    ),
    told(0x61, "AF 01 61 01 00000005 01 0002 4F4B", OK),
    ask(0x62, "AF 01 62 01 00000000", m.Nothing()),
    told(
        0x62,
        "AF 01 62 01 0000001E  00000001  0001 74  0001 67  00000001 00000001  00000000 000000000000002B",
        m.GroupRows([_ROW]),
    ),
    ask(0x63, "AF 01 63 01 00000006  0001 74  0001 67", m.Group("t", "g")),
    told(
        0x63,
        "AF 01 63 01 0000001A  0001 74  0001 67  00000001 00000001  00000000 000000000000002B",
        _ROW,
    ),
    ask(0x64, "AF 01 64 01 0000000A  0001 74  0001 67  00000000", m.GroupPartition("t", "g", 0)),
    told(
        0x64,
        "AF 01 64 01 00000020  0000000000000028 0000000000000028 000000000000002B 0000000000000003",
        m.Lag(40, 40, 43, 3),
    ),
    ask(0x65, "AF 01 65 01 00000006  0001 74  0001 67", m.Group("t", "g")),
    told(0x65, "AF 01 65 01 00000005 01 0002 4F4B", OK),
    ask(
        0x66,
        "AF 01 66 01 00000012  0001 74  0001 67  00000000  0000018D01472400",
        m.SeekToTimestamp("t", "g", 0, TIME_MS),
    ),
    told(0x66, "AF 01 66 01 00000008 000000000000002A", m.Offset(42)),
    ask(
        0x67,
        "AF 01 67 01 0000000C  0001 74  0001 67  0000  00007530",
        m.JoinGroup("t", "g", "", 30_000),
    ),
    told(
        0x67,
        "AF 01 67 01 00000014  0002 6D31  00000001  00000002 00000000 00000002",
        m.Assignment("m1", 1, [0, 2]),
    ),
    ask(
        0x68,
        "AF 01 68 01 0000000E  0001 74  0001 67  0002 6D31  00000001",
        m.Heartbeat("t", "g", "m1", 1),
    ),
    told(0x68, "AF 01 68 01 0000000C  0002 6D31  00000001  00000000", m.Assignment("m1", 1, [])),
    ask(0x69, "AF 01 69 01 0000000A  0001 74  0001 67  0002 6D31", m.LeaveGroup("t", "g", "m1")),
    told(0x69, "AF 01 69 01 00000005 01 0002 4F4B", OK),
]

ACCESS = [
    ask(0x70, "AF 01 70 01 0000000B  0005 61646D696E  0002 7077", m.Auth("admin", "pw")),
    told(
        0x70,
        "AF 01 71 01 00000015  01  0000  0005 61646D696E  00000001  0005 61646D696E",
        m.AuthReply(True, "", "admin", ["admin"]),
        (SPEC,),
    ),
    told(
        0x70,
        "AF 01 71 01 00000014  01  0005 61646D696E  00000001  05 61646D696E  0000",
        m.SdkAuthReply(True, "admin", ["admin"], ""),
        (SDK,),
    ),
    told(
        0x70,
        'AF 01 71 01 00000025  00  001C "invalid username or password"  0000  00000000',
        m.AuthReply(False, "invalid username or password", "", []),
        (SPEC,),
    ),
    ask(0x72, "AF 01 72 01 00000000", m.Nothing()),
    told(
        0x72,
        "AF 01 72 01 0000002B  01  0005 61646D696E  00000001 0005 61646D696E"
        " 00000003 0004 72656164 0005 7772697465 0005 61646D696E",
        m.WhoAmI(True, "admin", ["admin"], ["read", "write", "admin"]),
    ),
    ask(
        0x73,
        "AF 01 73 01 00000019  0002 616C  0002 7077  0000  00000001 0008 636F6E73756D6572  01",
        a.UserRequest("al", "pw", "", ["consumer"], True),
    ),
    told(
        0x73,
        "AF 01 73 01 00000027  0002 616C  00000001 0008 636F6E73756D6572  00000000  01"
        " 0000000000000000 0000000000000000",
        a.User("al", ["consumer"], [], True, 0, 0),
    ),
    ask(0x74, "AF 01 74 01 00000004  0002 616C", a.UserName("al")),
    told(0x74, "AF 01 74 01 00000005  01 0002 616C", m.Ok(True, "al")),
    ask(
        0x75,
        "AF 01 75 01 00000014  0002 616C  0000  0000  00000001 0005 61646D696E  01",
        a.UserRequest("al", "", "", ["admin"], True),
    ),
    told(0x75, "AF 01 75 01 00000005  01 0002 616C", m.Ok(True, "al")),
    ask(0x76, "AF 01 76 01 00000000", m.Nothing()),
    told(
        0x76,
        "AF 01 76 01 0000002B  00000001  0002 616C  00000001 0008 636F6E73756D6572  00000000  01"
        " 0000000065A21E80 0000000065A21E80",
        a.Users([_AL]),
    ),
    ask(0x77, "AF 01 77 01 00000004  0002 616C", a.UserName("al")),
    told(
        0x77,
        "AF 01 77 01 0000002D  0002 616C  00000001 0008 636F6E73756D6572  00000001 0004 72656164  01"
        " 0000000065A21E80 0000000065A21E80",
        a.User("al", ["consumer"], ["read"], True, 0x65A21E80, 0x65A21E80),
    ),
    ask(
        0x78,
        "AF 01 78 01 00000010  0001 74  00  00000001 0002 616C  00000000",
        a.SetRule("t", False, ["al"], []),
    ),
    told(0x78, "AF 01 78 01 00000004  01 0001 74", m.Ok(True, "t")),
    ask(0x79, "AF 01 79 01 00000003  0001 74", m.Topic("t")),
    told(
        0x79,
        "AF 01 79 01 00000012  0001 74  01 00 00  00000001 0002 616C  00000000",
        a.Rule("t", True, False, False, ["al"], []),
    ),
    told(
        0x79,
        "AF 01 79 01 0000000E  0001 74  00 00 01  00000000  00000000",
        a.Rule("t", False, False, True, [], []),
    ),
    ask(0x7A, "AF 01 7A 01 00000003  0001 74", m.Topic("t")),
    told(0x7A, "AF 01 7A 01 00000004  01 0001 74", m.Ok(True, "t")),
    ask(0x7B, "AF 01 7B 01 00000000", m.Nothing()),
    told(
        0x7B,
        "AF 01 7B 01 00000016  00000001  0001 74  01 00  00000001 0002 616C  00000000  01",
        a.Rules([a.RuleRow("t", True, False, ["al"], [])], True),
    ),
    ask(
        0x7C,
        "AF 01 7C 01 00000013  0002 616C  0003 6E6577  0003 6F6C64  00000000  00",
        a.UserRequest("al", "new", "old", [], False),
    ),
    told(0x7C, "AF 01 7C 01 00000005  01 0002 616C", m.Ok(True, "al")),
    ask(0x7D, "AF 01 7D 01 00000000", m.Nothing()),
    told(
        0x7D,
        'AF 01 7D 01 0000003D  00000001  0008 "consumer"  00000001 0004 72656164'
        '  0023 "Read-only access (consume messages)"',
        a.Roles([a.Role("consumer", ["read"], "Read-only access (consume messages)")]),
    ),
]

_QUERY_HEX = (
    "0000000000000000 0000000000000000  00000000  0002 616C  0000 0000 0000  00000064 00000000"
)
AUDIT = [
    ask(0x80, f"AF 01 80 01 00000026  {_QUERY_HEX}", _QUERY),
    told(
        0x80,
        'AF 01 80 01 00000035  00000001  00000028  0001 "e" 0000018D01472400 0001 "t" 0002 "al"'
        ' 0000 0000 0000 0000 0002 "n1" 00000001 0001 "k" 0001 "v"  00000001  00',
        a.AuditEvents([_EVENT], 1, False),
    ),
    ask(
        0x81,
        f"AF 01 81 01 0000002F  00000026 {_QUERY_HEX}  0003 637376",
        a.AuditExport(_QUERY, "csv"),
    ),
    told(
        0x81, "AF 01 81 01 0000000C  0003 637376  00000003 49440A", a.AuditExported("csv", b"ID\n")
    ),
]

VECTORS = [*CORE, *SCHEMAS, *QUEUES, *CLUSTER, *GROUPS, *ACCESS, *AUDIT]
