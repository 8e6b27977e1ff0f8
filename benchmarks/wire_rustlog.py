"""How fast RustLog requests and replies are read and written, both dialects, without a socket.

    python benchmarks/wire_rustlog.py [seconds per row]

1,000 records of 100 random bytes per request. The control row is the standard library: json.loads of
the same Produce and `bytes` of each number list. Each row prints its ratio to it.
"""

import json
import random
import sys
import time
from array import array
from collections.abc import Callable
from itertools import accumulate

from penstock.server.memory import settle_allocator
from penstock.wire.rustlog import binary as rustlog_binary
from penstock.wire.rustlog import binary_reply as rustlog_binary_reply
from penstock.wire.rustlog import json as rustlog_json
from penstock.wire.rustlog import json_encode as rustlog_json_encode
from penstock.wire.rustlog.frames import Produce

RECORDS = 1000
RECORD_BYTES = 100
MAX_BYTES = 1 << 20


def rate(call: Callable[[], object], seconds: float) -> float:
    """Records per second, the best of five stretches."""
    best = 0.0
    for _ in range(5):
        calls = 0
        begin = time.perf_counter()
        end = begin
        while end - begin < seconds / 5:
            call()
            calls += 1
            end = time.perf_counter()
        best = max(best, calls * RECORDS / (end - begin))
    return best


def rows() -> dict[str, Callable[[], object]]:
    records = random.Random(7).randbytes(RECORDS * RECORD_BYTES)
    values = [records[at : at + RECORD_BYTES] for at in range(0, len(records), RECORD_BYTES)]
    offsets = array("i", accumulate(map(len, values), initial=0)).tobytes()
    batch, values_at = offsets + records, len(offsets)
    produce = Produce("orders", 0, values)
    as_json = rustlog_json_encode.encode_request(produce)
    as_binary = rustlog_binary.encode_request(produce)

    def library() -> list[bytes]:
        decoded = json.loads(as_json[4:])
        return [bytes(record) for record in decoded["Produce"]["records"]]

    def fetch_json() -> bytes:
        writer = rustlog_json_encode.FetchReplyWriter(MAX_BYTES)
        writer.add_rows(batch, 0, values_at, 0, RECORDS, 1_000_000)
        return writer.finish(1_000_000 + RECORDS)

    def fetch_binary() -> bytes:
        writer = rustlog_binary_reply.FetchReplyWriter(MAX_BYTES)
        writer.add_rows(batch, 0, values_at, 0, RECORDS)
        return writer.finish(RECORDS)

    json_reply, binary_reply = fetch_json(), fetch_binary()
    return {
        "control: json.loads of a Produce": library,
        "J read Produce": lambda: rustlog_json.decode_request(as_json, 4, len(as_json)),
        "J write Produce reply": lambda: rustlog_json_encode.encode_produce_reply(10**6, RECORDS),
        "J write Fetch reply from a batch": fetch_json,
        "J read Fetch reply (client)": lambda: rustlog_json.decode_reply(
            json_reply, 4, len(json_reply)
        ),
        "J write Produce (client)": lambda: rustlog_json_encode.encode_request(produce),
        "B read Produce": lambda: rustlog_binary.decode_request(as_binary, 4, len(as_binary)),
        "B write Fetch reply from a batch": fetch_binary,
        "B read Fetch reply (client)": lambda: rustlog_binary_reply.decode_reply(
            binary_reply, 4, len(binary_reply)
        ),
        "B write Produce (client)": lambda: rustlog_binary.encode_request(produce),
    }


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    settle_allocator()
    kind = "pure" if str(rustlog_json.__file__).endswith(".py") else "compiled"
    print(f"RustLog wire, {kind}, {RECORDS} records of {RECORD_BYTES} bytes per request")
    control = 0.0
    for name, call in rows().items():
        speed = rate(call, seconds)
        control = control or speed
        print(f"  {name:34} {speed / 1e6:7.3f} M records/s   {speed / control:6.2f} of control")


if __name__ == "__main__":
    main()
