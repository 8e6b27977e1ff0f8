"""A golden request and reply for every opcode of FlyMQ, in hex, with what a peer without rights is told.

    <name>   in a reply: a text of the server's own, which later steps use under this name; else that text
    {name}   the same as a u64
    ?        a time of now, 8 bytes, in seconds or milliseconds
    @        the address of the server, as a text
    ####     the size of a payload with one of these in it

Everything else is the bytes of the documents. An opcode of the wire's table that is not here fails
test_every_opcode.py; nothing in this file uses the product.
"""

from dataclasses import dataclass
from typing import Final

# The payload is one text that may be missing: less than its length is none.
OPTIONAL: Final = -1


@dataclass(frozen=True, slots=True)
class Golden:
    """`before`: what the request needs, as requests with the replies that are looked at. `whole_from`: the
    size from which on a payload is complete, where that is not its end.
    `refused`: behind the name of the peer; empty: everybody may ask."""

    request: str
    reply: str
    refused: str = ""
    before: tuple[tuple[str, str], ...] = ()
    whole_from: int | None = None
    sdk_request: str | None = None
    sdk_reply: str | None = None
    sdk_whole_from: int | None = None
    # A shorter size at which it is the whole request of an SDK, whose dialect is spoken from then on.
    sdk_at: int | None = None


# --- what others stand on -------------------------------------------------------------------------

ANY: Final = ""
CREATE: Final = ("AF 01 03 01 00000007  0001 74  00000001", ANY)
PRODUCE: Final = ("AF 01 01 01 00000011  0001 74  00000001 6B  00000001 76  FFFFFFFF", ANY)
COMMIT: Final = ("AF 01 06 01 00000012  0001 74  0001 67  00000000  0000000000000001", ANY)
SUBSCRIBE: Final = ("AF 01 05 01 00000012  0001 74  0001 67  00000000  0006 6C6174657374", ANY)
REGISTER: Final = ("AF 01 10 01 0000000E  0001 75  04 6A736F6E  00000002 7B7D", ANY)
LETTER: Final = ('AF 01 01 01 00000014  0005 "t.dlq"  00000000  00000001 76  FFFFFFFF', ANY)
DELAY: Final = (
    "AF 01 30 01 00000010  0001 74  00000001 76  000000000036EE80",
    "AF 01 30 01 0000001F  0001 74  00000000  {late}  ?  FFFFFFFF  00000001",
)
BEGIN: Final = ("AF 01 40 01 00000000", "AF 01 40 01 ####  <txn>  01")
JOIN: Final = (
    "AF 01 67 01 0000000C  0001 74  0001 67  0000  00007530",
    "AF 01 67 01 ####  <member>  00000001  00000001 00000000",
)
USER: Final = (
    "AF 01 73 01 00000019  0002 616C  0002 7077  0000  00000001 0008 636F6E73756D6572  01",
    ANY,
)
RULE: Final = ("AF 01 78 01 00000010  0001 74  00  00000001 0002 616C  00000000", ANY)
OK: Final = "00000005  01 0002 4F4B"
READ: Final = "that needs the right read on the topic"
WRITE: Final = "that needs the right write on the topic"
ADMIN: Final = "that needs the right admin on the topic"
SERVER: Final = "that needs the right admin on all topics"
ONE_NODE: Final = (
    '"nodes neither join nor leave by this call: the log of one machine is a cluster of one, and'
    ' gateways of Kafka are members as long as they run (penstock serve --engine kafka)"'
)
ALONE: Final = f"AF 01 FF 01 000000AF  00 00AC {ONE_NODE}"
SDK_ALONE: Final = f"AF 01 FF 01 00000106  00 0103 13 0100 {ONE_NODE} {'20' * 84}"


# --- records and topics ---------------------------------------------------------------------------

_CORE: Final = {
    0x01: Golden(
        "AF 01 01 01 00000011  0001 74  00000001 6B  00000001 76  FFFFFFFF",
        "AF 01 01 01 0000001F  0001 74  00000000  0000000000000000  ?  00000001  00000001",
        f"publish to topic 't': {WRITE}",
        whole_from=13,  # the partition may be missing: the document's own example lacks it
    ),
    0x02: Golden(
        "AF 01 02 01 0000000F  0001 74  00000000  0000000000000000",
        "AF 01 02 01 0000000A  00000001 6B  00000001 76",
        f"read topic 't': {READ}",
        (PRODUCE,),
    ),
    0x03: Golden(
        "AF 01 03 01 00000007  0001 74  00000003",
        f"AF 01 03 01 {OK}",
        f"create topic 't': {WRITE}",
    ),
    0x04: Golden(
        "AF 01 04 01 00000003  0001 74",
        "AF 01 04 01 0000001F  0001 74  00000001"
        " 00000000 00000000 0000000000000000 0000000000000001",
        f"look at topic 't': {READ}",
        (PRODUCE,),
    ),
    0x05: Golden(
        "AF 01 05 01 00000012  0001 74  0001 67  00000000  0006 6C6174657374",
        "AF 01 05 01 00000008  0000000000000001",
        f"subscribe to topic 't': {READ}",
        (PRODUCE,),
        sdk_request="AF 01 05 01 00000011  0001 74  0001 67  00000000  06 6C6174657374",
        sdk_at=11,  # a length of one byte that is 0: no mode
    ),
    0x06: Golden(
        "AF 01 06 01 00000012  0001 74  0001 67  00000000  0000000000000001",
        f"AF 01 06 01 {OK}",
        f"commit offsets of groups on topic 't': {READ}",
        (PRODUCE,),
    ),
    0x07: Golden(
        "AF 01 07 01 00000013  0001 74  00000000  0000000000000000  0000000A",
        "AF 01 07 01 0000001E  00000001  00000001 6B 00000001 76 0000000000000000"
        "  0000000000000001",
        f"read topic 't': {READ}",
        (PRODUCE,),
        sdk_request="AF 01 07 01 00000015  0001 74  00000000  0000000000000000  0000000A  0000",
        sdk_reply="AF 01 07 01 0000001E  00000001 0000000000000001"
        "  0000000000000000 00000001 6B 00000001 76",
        sdk_whole_from=19,
    ),
    0x08: Golden(
        "AF 01 08 01 00000000", "AF 01 08 01 00000007  00000001  0001 74", before=(CREATE,)
    ),
    0x09: Golden(
        "AF 01 09 01 00000003  0001 74",
        f"AF 01 09 01 {OK}",
        f"delete topic 't': {ADMIN}",
        (CREATE,),
    ),
    0x0A: Golden(
        "AF 01 0A 01 0000000F  0001 74  00000000  0000000000000000",
        "AF 01 0A 01 0000000A  00000001 6B  00000001 76",
        f"read topic 't': {READ}",
        (PRODUCE,),
    ),
    0x0B: Golden(
        "AF 01 0B 01 00000013  0001 74  00000000  0000000000000000  0000000A",
        "AF 01 0B 01 0000001E  00000001 0000000000000001  0000000000000000 00000001 6B 00000001 76",
        f"read topic 't': {READ}",
        (PRODUCE,),
    ),
}

# --- schemas --------------------------------------------------------------------------------------

_SCHEMAS: Final = {
    0x10: Golden(
        "AF 01 10 01 0000000E  0001 75  04 6A736F6E  00000002 7B7D",
        "AF 01 10 01 0000000C  0001 75  04 6A736F6E  00000001",
        f"register schemas: {SERVER}",
    ),
    0x11: Golden(
        "AF 01 11 01 00000007  0001 75  00000000",
        "AF 01 11 01 00000027  00000001  0001 75  04 6A736F6E  00000001"
        ' 00000002 7B7D  08 "backward"  ?',
        "look at schemas: that needs the right read on any topic",
        (REGISTER,),
    ),
    0x12: Golden(
        "AF 01 12 01 00000002  0000",
        "AF 01 12 01 00000010  00000001  0001 75  04 6A736F6E  00000001",
        "look at schemas: that needs the right read on any topic",
        (REGISTER,),
        whole_from=OPTIONAL,
    ),
    0x13: Golden(
        "AF 01 13 01 00000009  0001 75  00000002 7B7D",
        "AF 01 13 01 00000005  01  00000000",
        "validate messages: that needs the right read on any topic",
        (REGISTER,),
    ),
    0x14: Golden(
        "AF 01 14 01 0000000C  0001 74  0001 75  00000002 7B7D",
        "AF 01 14 01 0000001F  0001 74  00000000  0000000000000000  ?  FFFFFFFF  00000002",
        f"publish to topic 't': {WRITE}",
        (REGISTER,),
        sdk_request="AF 01 14 01 0000000C  0001 74  00000002 7B7D  0001 75",
    ),
    0x15: Golden(
        "AF 01 15 01 00000007  0001 75  00000001",
        f"AF 01 15 01 {OK}",
        f"delete schemas: {SERVER}",
        (REGISTER,),
    ),
}

# --- dead letters, delayed messages, transactions -------------------------------------------------

_QUEUES: Final = {
    0x20: Golden(
        "AF 01 20 01 00000007  0001 74  0000000A",
        'AF 01 20 01 00000014  00000001  0003 "0-0"  00000001 76  0000  00000000',
        f"read the dead letters of topic 't': {READ}",
        (LETTER,),
    ),
    0x21: Golden(
        'AF 01 21 01 00000008  0001 74  0003 "0-0"',
        f"AF 01 21 01 {OK}",
        f"replay dead letters of topic 't': {ADMIN}",
        (LETTER,),
    ),
    0x22: Golden(
        "AF 01 22 01 00000003  0001 74",
        f"AF 01 22 01 {OK}",
        f"purge the dead letters of topic 't': {ADMIN}",
        (LETTER,),
    ),
    0x30: Golden(
        "AF 01 30 01 00000010  0001 74  00000001 76  000000000036EE80",
        "AF 01 30 01 0000001F  0001 74  00000000  {late}  ?  FFFFFFFF  00000001",
        f"publish to topic 't': {WRITE}",
    ),
    0x31: Golden(
        "AF 01 31 01 0000000B  0001 74  {late}",
        f"AF 01 31 01 {OK}",
        "cancel delayed messages: that needs the right write on any topic",
        (DELAY,),
        whole_from=3,  # a text alone is an id, which is not found
    ),
    0x35: Golden(
        "AF 01 35 01 00000010  0001 74  00000001 76  000000000000EA60",
        "AF 01 35 01 0000001F  0001 74  00000000  0000000000000000  ?  FFFFFFFF  00000001",
        f"publish to topic 't': {WRITE}",
    ),
    0x40: Golden(
        "AF 01 40 01 00000000",
        "AF 01 40 01 ####  <txn>  01",
        "begin transactions: that needs the right write on any topic",
    ),
    0x41: Golden(
        "AF 01 41 01 ####  <txn>",
        "AF 01 41 01 ####  <txn>  01",
        "end transactions: that needs the right write on any topic",
        (BEGIN,),
    ),
    0x42: Golden(
        "AF 01 42 01 ####  <txn>",
        "AF 01 42 01 ####  <txn>  01",
        "end transactions: that needs the right write on any topic",
        (BEGIN,),
    ),
    0x43: Golden(
        "AF 01 43 01 ####  <txn>  0001 74  00000001 76",
        "AF 01 43 01 0000001F  0001 74  00000000  0000000000000000  ?  FFFFFFFF  00000001",
        f"publish to topic 't': {WRITE}",
        (BEGIN,),
    ),
}

# --- the cluster ----------------------------------------------------------------------------------

_CLUSTER: Final = {
    0x50: Golden(
        "AF 01 50 01 00000009  0007 6E323A39303933",
        ALONE,
        f"change the cluster: {SERVER}",
        sdk_reply=SDK_ALONE,
    ),
    0x51: Golden(
        "AF 01 51 01 00000000",
        ALONE,
        f"change the cluster: {SERVER}",
        sdk_reply=SDK_ALONE,
    ),
    0x52: Golden(
        "AF 01 52 01 00000000",
        'AF 01 52 01 ####  000A "standalone"  0002 "n1"  0000000000000001  00000001'
        ' 0002 "n1"  @  0000  0006 "online"  01',
        "look at the cluster: that needs the right read on any topic",
    ),
    # Only SDKs send it: from now on the connection speaks their dialect.
    0x53: Golden(
        "AF 01 53 01 00000003  0001 74",
        'AF 01 53 01 ####  000A "standalone"  00000001  0001 74  00000001  00000000 0002 6E31 @'
        " 0000000000000001 0006 6F6E6C696E65 00000001 0002 6E31 00000001 0002 6E31",
        f"look at topic 't': {READ}",
        (CREATE,),
        whole_from=OPTIONAL,
    ),
}

# --- groups ---------------------------------------------------------------------------------------

_GROUPS: Final = {
    0x60: Golden(
        "AF 01 60 01 0000000A  0001 74  0001 67  00000000",
        "AF 01 60 01 00000008  0000000000000001",
        f"read offsets of groups on topic 't': {READ}",
        (PRODUCE, COMMIT),
    ),
    0x61: Golden(
        "AF 01 61 01 0000001A  0001 74  0001 67  00000000  0006 6F6666736574  0000000000000007",
        f"AF 01 61 01 {OK}",
        f"reset groups on topic 't': {ADMIN}",
        (CREATE,),
        whole_from=18,  # the offset belongs to this mode alone
        sdk_request="AF 01 61 01 00000019  0001 74  0001 67  00000000  06 6F6666736574"
        "  0000000000000007",
        sdk_whole_from=17,
        sdk_at=11,
    ),
    0x62: Golden(
        "AF 01 62 01 00000000",
        "AF 01 62 01 0000001E  00000001  0001 74  0001 67  00000001 00000001"
        "  00000000 0000000000000001",
        before=(PRODUCE, COMMIT, SUBSCRIBE),
    ),
    0x63: Golden(
        "AF 01 63 01 00000006  0001 74  0001 67",
        "AF 01 63 01 0000001A  0001 74  0001 67  00000001 00000001  00000000 0000000000000001",
        f"read offsets of groups on topic 't': {READ}",
        (PRODUCE, COMMIT, SUBSCRIBE),
    ),
    0x64: Golden(
        "AF 01 64 01 0000000A  0001 74  0001 67  00000000",
        "AF 01 64 01 00000020  0000000000000001 0000000000000001 0000000000000002 0000000000000001",
        f"read offsets of groups on topic 't': {READ}",
        (PRODUCE, PRODUCE, COMMIT),
    ),
    0x65: Golden(
        "AF 01 65 01 00000006  0001 74  0001 67",
        f"AF 01 65 01 {OK}",
        "delete group 'g': that needs the right admin on every topic of the group",
        (PRODUCE, COMMIT),
    ),
    0x66: Golden(
        "AF 01 66 01 00000012  0001 74  0001 67  00000000  0000018D01472400",
        "AF 01 66 01 00000008  0000000000000000",
        f"commit offsets of groups on topic 't': {READ}",
        (PRODUCE,),
    ),
    0x67: Golden(
        "AF 01 67 01 0000000C  0001 74  0001 67  0000  00007530",
        "AF 01 67 01 ####  <member>  00000001  00000001 00000000",
        f"subscribe to topic 't': {READ}",
        (CREATE,),
    ),
    0x68: Golden(
        "AF 01 68 01 ####  0001 74  0001 67  <member>  00000001",
        "AF 01 68 01 ####  <member>  00000001  00000001 00000000",
        f"subscribe to topic 't': {READ}",
        (CREATE, JOIN),
    ),
    0x69: Golden(
        "AF 01 69 01 ####  0001 74  0001 67  <member>",
        f"AF 01 69 01 {OK}",
        f"subscribe to topic 't': {READ}",
        (CREATE, JOIN),
    ),
}

# --- users and rules ------------------------------------------------------------------------------

_ACCESS: Final = {
    0x70: Golden(
        "AF 01 70 01 0000000B  0005 61646D696E  0002 7077",
        "AF 01 71 01 00000015  01  0000  0005 61646D696E  00000001  0005 61646D696E",
        sdk_reply="AF 01 71 01 00000014  01  0005 61646D696E  00000001  05 61646D696E  0000",
    ),
    0x72: Golden(
        "AF 01 72 01 00000000",
        "AF 01 72 01 0000002B  01  0005 61646D696E  00000001 0005 61646D696E"
        " 00000003 0004 72656164 0005 7772697465 0005 61646D696E",
    ),
    0x73: Golden(
        "AF 01 73 01 00000019  0002 616C  0002 7077  0000  00000001 0008 636F6E73756D6572  01",
        "AF 01 73 01 00000027  0002 616C  00000001 0008 636F6E73756D6572  00000000  01"
        " 0000000000000000 0000000000000000",
        f"create users: {SERVER}",
        whole_from=24,
    ),
    0x74: Golden(
        "AF 01 74 01 00000004  0002 616C",
        "AF 01 74 01 00000005  01 0002 616C",
        f"delete users: {SERVER}",
        (USER,),
    ),
    0x75: Golden(
        "AF 01 75 01 00000014  0002 616C  0000  0000  00000001 0005 61646D696E  01",
        "AF 01 75 01 00000005  01 0002 616C",
        f"change users: {SERVER}",
        (USER,),
        whole_from=19,
    ),
    0x76: Golden(
        "AF 01 76 01 00000000",
        "AF 01 76 01 0000006F  00000003"
        "  0005 61646D696E  00000001 0005 61646D696E  00000000  01 ? ?"
        "  0002 616C  00000001 0008 636F6E73756D6572  00000000  01 ? ?"
        "  0002 6E6F  00000000  00000000  01 ? ?",
        f"list users: {SERVER}",
        (USER,),
    ),
    0x77: Golden(
        "AF 01 77 01 00000004  0002 616C",
        "AF 01 77 01 0000002D  0002 616C  00000001 0008 636F6E73756D6572  00000001 0004 72656164"
        "  01 ? ?",
        f"list users: {SERVER}",
        (USER,),
    ),
    0x78: Golden(
        "AF 01 78 01 00000010  0001 74  00  00000001 0002 616C  00000000",
        "AF 01 78 01 00000004  01 0001 74",
        f"change topic rules: {SERVER}",
    ),
    0x79: Golden(
        "AF 01 79 01 00000003  0001 74",
        "AF 01 79 01 00000012  0001 74  01 00 00  00000001 0002 616C  00000000",
        f"list topic rules: {SERVER}",
        (RULE,),
    ),
    0x7A: Golden(
        "AF 01 7A 01 00000003  0001 74",
        "AF 01 7A 01 00000004  01 0001 74",
        f"change topic rules: {SERVER}",
        (RULE,),
    ),
    # `default_public` is false here.
    0x7B: Golden(
        "AF 01 7B 01 00000000",
        "AF 01 7B 01 00000016  00000001  0001 74  01 00  00000001 0002 616C  00000000  00",
        f"list topic rules: {SERVER}",
        (RULE,),
    ),
    0x7C: Golden(
        "AF 01 7C 01 00000013  0002 616C  0003 6E6577  0003 6F6C64  00000000  00",
        "AF 01 7C 01 00000005  01 0002 616C",
        f"change the passwords of others: {SERVER}",
        (USER,),
        whole_from=18,
    ),
    0x7D: Golden(
        "AF 01 7D 01 00000000",
        "AF 01 7D 01 000000DF  00000004"
        " 0005 61646D696E  00000003 0004 72656164 0005 7772697465 0005 61646D696E"
        ' 001D "Full access to all operations"'
        " 0008 70726F6475636572  00000001 0005 7772697465"
        ' 0024 "Write-only access (produce messages)"'
        " 0008 636F6E73756D6572  00000001 0004 72656164"
        ' 0023 "Read-only access (consume messages)"'
        ' 0005 6775657374  00000000  001C "Access to public topics only"',
    ),
}

# --- the audit trail ------------------------------------------------------------------------------

# Of what al did, which is nothing here; test_audit.py has events.
_OF_AL: Final = (
    "0000000000000000 0000000000000000  00000000  0002 616C  0000 0000 0000  00000064 00000000"
)
_AUDITOR: Final = f"read the audit trail: {SERVER}; admin access required for audit queries"
_AUDIT: Final = {
    0x80: Golden(
        f"AF 01 80 01 00000026  {_OF_AL}",
        "AF 01 80 01 00000009  00000000  00000000 00",
        _AUDITOR,
    ),
    0x81: Golden(
        f"AF 01 81 01 0000002F  00000026 {_OF_AL}  0003 637376",
        "AF 01 81 01 00000047  0003 637376  0000003E"
        ' "id,time,type,user,address,door,resource,action,result,details" 0A',
        _AUDITOR,
    ),
}

GOLDENS: Final = {**_CORE, **_SCHEMAS, **_QUEUES, **_CLUSTER, **_GROUPS, **_ACCESS, **_AUDIT}
