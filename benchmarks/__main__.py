"""Runs benchmarks and prints one table each.

    python -m benchmarks                 all suites
    python -m benchmarks log wire        these
    python -m benchmarks --quick         small sizes: to see that everything runs, not for numbers

A suite is a module here with a function `tables(quick) -> Iterator[Table]`.
"""

import argparse
import sys
from importlib import import_module

from benchmarks.broker_servers import end_when_told
from penstock import build_info

SUITES = ("log", "wire", "request", "broker", "flymq", "quic", "size", "flight", "spark")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.split("\n")[0]
    )
    parser.add_argument("suites", nargs="*", metavar="suite", help=", ".join(SUITES))
    parser.add_argument("--quick", action="store_true", help="small sizes, no numbers to quote")
    options = parser.parse_args()
    for name in options.suites:
        if name not in SUITES:
            parser.error(f"no suite {name}; there are {', '.join(SUITES)}")
    end_when_told()
    info = build_info()
    print(f"penstock {info.version}, Python {info.python}, {info.kind}")
    missed = 0
    for name in options.suites or SUITES:
        for table in import_module(f"benchmarks.{name}").tables(options.quick):
            print(f"\n{table.text()}", flush=True)
            missed += sum(row.reached is False for row in table.rows)
    if missed:
        print(f"\n{missed} targets not reached" + (" (quick: no wonder)" if options.quick else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
