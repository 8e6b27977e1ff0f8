"""The entry of the `penstock` command: gathers the commands and turns errors into one line.

A command lives in a module of its own here, `penstock/cli/<noun>.py`, with a function
`register(app)` that adds it; its name goes into COMMAND_MODULES. Such a module imports what it
needs inside its commands, so that `penstock --help` stays quick. No command prints errors itself.
"""

import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Final

import typer

from penstock import __version__
from penstock.cli.environment import complaints
from penstock.errors import EXIT_MEANINGS, ExitCode, PenstockError

# In the order of the help text.
COMMAND_MODULES: Final = (
    "serve",
    "pub",
    "sub",
    "cat",
    "cache",
    "topic",
    "group",
    "status",
    "engine",
    "dlq",
    "txn",
    "delayed",
    "felix",
    "schema",
    "pipeline",
    "table",
    "demo",
    "report",
    "key",
    "user",
    "acl",
    "audit",
    "context",
    "config",
    "log",
    "version",
)

EXIT_CODES: Final = (
    f"Exit codes: {', '.join(f'{code.value} {text}' for code, text in EXIT_MEANINGS.items())}."
)
# How typer begins the text of a bad value: with the option, if it knows it, and words of its own.
_BAD_VALUE: Final = re.compile(r"^Invalid value(?: for (?P<where>.*?))?: (?:Value error, )?")


def build_app(modules: Sequence[str] = COMMAND_MODULES) -> typer.Typer:
    app = typer.Typer(
        name="penstock",
        help="One broker, one durable log, several wire protocols, and Spark.",
        epilog=EXIT_CODES,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    # A callback keeps `penstock version` a subcommand while it is the only one.
    app.callback()(_root)
    for name in modules:
        import_module(f"penstock.cli.{name}").register(app)
    return app


def needed_modules(arguments: Sequence[str]) -> Sequence[str]:
    """The module of the command that is called; all of them for the help and for a mistyped command.

    Importing and registering all commands takes 0.1 s of CPU, a third of what a short command takes.
    """
    return arguments[:1] if arguments[0] in COMMAND_MODULES else COMMAND_MODULES


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit()


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """One broker, one durable log, several wire protocols, and Spark."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code. Errors a user can cause are one line on stderr."""
    open_closed_descriptors()
    args = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    for complaint in complaints(os.environ):
        print(f"penstock: {complaint}", file=sys.stderr)
    try:
        result = build_app(needed_modules(args))(
            args=args, prog_name="penstock", standalone_mode=False
        )
        sys.stdout.flush()
    except typer.TyperException as error:
        text = _wording(error)
        return _fail(text + _notes(error), error.exit_code) if text else error.exit_code
    except PenstockError as error:
        return _fail(str(error) + _notes(error), error.exit_code)
    except BrokenPipeError:
        return _without_reader()
    except SystemExit as error:
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        # typer's own end in this case: exit code 1.
        return _without_reader()
    except OSError as error:
        return _fail(_describe(error) + _notes(error), ExitCode.FAILED)
    except typer.Abort:
        return _fail("the input ended before an answer; --yes asks nothing", ExitCode.FAILED)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    # Ctrl-C in a command arrives here: typer makes it 130, without a text.
    return result if isinstance(result, int) else ExitCode.DONE


def _wording(error: typer.TyperException) -> str:
    """One line: where, what is wrong, and which help tells more. Empty where the help was shown instead."""
    text = error.format_message().strip().rstrip(".")
    found = _BAD_VALUE.match(text)
    if found is not None:
        where = (found["where"] or "").replace("'", "")
        text = (f"{where}: " if where else "") + text[found.end() :]
    context = getattr(error, "ctx", None)
    if text and error.exit_code == ExitCode.USAGE:
        text += f"; see {'penstock' if context is None else context.command_path} --help"
    return text


def _without_reader() -> int:
    """The reader has what it wanted (`penstock cat | head -1`), and there is nothing to flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.DONE


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
    """The notes that callers added to the error: what became of the rest, what to do."""
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
