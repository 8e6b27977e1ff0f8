"""The entry of the `penstock` command: gathers the commands and turns errors into one line.

A command lives in a module of its own here, `penstock/cli/<noun>.py`, with a function
`register(app)` that adds it; its name goes into COMMAND_MODULES. Such a module imports what it
needs inside its commands, so that `penstock --help` stays quick. No command prints errors itself.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

import typer

from penstock.errors import PenstockError

# In the order of the help text.
COMMAND_MODULES: Final = (
    "serve",
    "pub",
    "sub",
    "cat",
    "topic",
    "group",
    "key",
    "context",
    "config",
    "log",
    "version",
)

EXIT_CODES: Final = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 no connection, 5 not authorized."
)

EXIT_FAILED: Final = 1


def build_app() -> typer.Typer:
    app = typer.Typer(
        name="penstock",
        help="One broker, one durable log, several wire protocols, and Spark.",
        epilog=EXIT_CODES,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    # A callback keeps `penstock version` a subcommand while it is the only one.
    app.callback()(_root)
    for name in COMMAND_MODULES:
        import_module(f"penstock.cli.{name}").register(app)
    return app


def _root() -> None:
    """One broker, one durable log, several wire protocols, and Spark."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code. Errors a user can cause are one line on stderr."""
    open_closed_descriptors()
    args = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        result = build_app()(args=args, prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        hint = "; see penstock --help" if error.exit_code == 2 else ""
        return _fail(error.format_message().rstrip(".") + _notes(error) + hint, error.exit_code)
    except PenstockError as error:
        return _fail(str(error) + _notes(error), error.exit_code)
    except BrokenPipeError:
        # The reader went away (`penstock cat | head`): no text, and nothing to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        return _fail(_describe(error) + _notes(error), EXIT_FAILED)
    except typer.Abort:
        return _fail("the input ended before an answer", EXIT_FAILED)
    # Ctrl-C arrives here too: typer makes it the shell's 130, without a text.
    return result if isinstance(result, int) else 0


def open_closed_descriptors() -> None:
    """A shell can close stdin, stdout and stderr (`>&-`). The next file or socket to be opened would
    take the free number, and what is printed would go there: such a number gets the null device."""
    streams = (
        ("stdin", os.O_RDONLY, "r"),
        ("stdout", os.O_WRONLY, "w"),
        ("stderr", os.O_WRONLY, "w"),
    )
    for number, (name, flags, mode) in enumerate(streams):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _notes(error: BaseException) -> str:
    """What was added to an error on its way: what became of the rest, what to do."""
    return "".join(f"; {note}" for note in getattr(error, "__notes__", ()))


def _describe(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


def _fail(message: str, exit_code: int) -> int:
    one_line = " ".join(message.split()) or "failed without a message"
    print(f"penstock: {one_line}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
