"""Options that several commands share, or that come from a table, in the signature that typer reads."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any


def with_options(
    command: Callable[..., None],
    parameter: str,
    options: Mapping[str, tuple[Any, Any]],
    value_of: Callable[[dict[str, Any]], object],
    *,
    before: str = "",
) -> Callable[..., None]:
    """`command` with `options` (annotation and default by name) in place of its `parameter`, which gets
    what `value_of` makes of their values. In the help they stand before the option `before`, or last."""
    signature = inspect.signature(command)
    shown = [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for one in signature.parameters.values()
        if one.name != parameter
    ]
    names = [one.name for one in shown]
    at = names.index(before) if before else len(names)
    shown[at:at] = [
        inspect.Parameter(
            f"{parameter}_{name}", inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
        )
        for name, (kind, default) in options.items()
    ]

    @wraps(command)
    def wrapped(**values: Any) -> None:
        given = {name: values.pop(f"{parameter}_{name}") for name in options}
        command(**{parameter: value_of(given)}, **values)

    wrapped.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]  # read by typer
    wrapped.__annotations__ = {one.name: one.annotation for one in shown} | {"return": None}
    return wrapped
