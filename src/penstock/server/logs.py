"""The log of a run, on stderr: one line per event, with the time and its zone, as text or as JSON.

    2026-11-16T12:40:05.123+00:00 INFO penstock.server.server: started: ...
    {"time":"2026-11-16T12:40:05.123+00:00","level":"INFO","logger":"...","message":"started: ..."}

What is logged is decided where it happens; this module only says how it looks.
"""

import logging
from datetime import UTC, datetime
from typing import Literal

import msgspec

LogFormat = Literal["text", "json"]


def configure(level: str, form: LogFormat) -> None:
    """For the whole process; may be called again."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if form == "json" else _Text())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).astimezone().isoformat("T", "milliseconds")


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(
        self, record: logging.LogRecord, datefmt: str | None = None
    ) -> str:  # of logging
        return _time(record)


class _Json(logging.Formatter):
    """Always one line; a traceback is one text in `error`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
