"""Appends to a topic that is not durable itself yet: they complete when both are durable."""

from penstock.log.errors import LogError
from penstock.log.partitions.tokens import AppendToken
from penstock.log.pending import Pending


def gate(token: AppendToken, creation: Pending[int]) -> AppendToken:
    """Done when both the records and the topic that holds them are durable."""
    gated = AppendToken(token.count)

    def finish() -> None:
        if token.done and creation.done and not gated.done:
            gated.base_offset = token.base_offset
            gated.repeated = token.repeated
            error = creation.error
            gated.error = token.error if error is None else _as_exception(error)
            gated.complete()

    token.on_done(lambda _: finish())
    creation.on_done(lambda _: finish())
    return gated


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else LogError(str(error))
