"""Runs benchmarks and prints one table each.

    python -m benchmarks                 all suites
    python -m benchmarks log wire        these
    python -m benchmarks quic.cache      one part of a suite that has parts
    python -m benchmarks --quick         small sizes: to see that everything runs, not for numbers

A suite is a module here with a function `tables(quick) -> Iterator[Table]`. One with parts has their names
in `PARTS`, and takes those that are wanted as a second argument.
"""

import argparse
import sys
from importlib import import_module

from benchmarks.broker_servers import end_when_told
from penstock import build_info

SUITES = (
    "log",
    "wire",
    "request",
    "broker",
    "flymq",
    "quic",
    "size",
    "flight",
    "spark",
    "pipeline",
    "kafka",
)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.split("\n")[0]
    )
    parser.add_argument("suites", nargs="*", metavar="suite", help=", ".join(SUITES))
    parser.add_argument("--quick", action="store_true", help="small sizes, no numbers to quote")
    options = parser.parse_args()
    wanted: dict[str, list[str]] = {}
    for named in options.suites or SUITES:
        name, _, part = named.partition(".")
        if name not in SUITES:
            parser.error(f"no suite {name}; there are {', '.join(SUITES)}")
        parts = getattr(import_module(f"benchmarks.{name}"), "PARTS", ())
        if part and part not in parts:
            parser.error(f"suite {name} has no part {part}; there are {', '.join(parts) or 'none'}")
        wanted.setdefault(name, []).extend([part] if part else parts)
    end_when_told()
    info = build_info()
    print(f"penstock {info.version}, Python {info.python}, {info.kind}")
    missed = 0
    for name, chosen in wanted.items():
        module = import_module(f"benchmarks.{name}")
        arguments = (options.quick, chosen) if chosen else (options.quick,)
        for table in module.tables(*arguments):
            print(f"\n{table.text()}", flush=True)
            missed += sum(row.reached is False for row in table.rows)
    if missed:
        print(f"\n{missed} targets not reached" + (" (quick: no wonder)" if options.quick else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
