"""Every error of ours: its line names its own fields, and it survives the way to another process."""

import importlib
import pickle
import pkgutil
import string
from collections.abc import Iterator

import pytest

import penstock
from penstock.broker import errors as broker
from penstock.client import errors as client
from penstock.errors import PenstockError
from penstock.log import errors as log
from penstock.log import metadata_errors as metadata
from penstock.wire.blipmq.frames import BlipMQProtocolError
from penstock.wire.rustlog.frames import BINARY, RustLogProtocolError


def load_all() -> None:
    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def below(kind: type[PenstockError]) -> Iterator[type[PenstockError]]:
    for child in kind.__subclasses__():
        yield child
        yield from below(child)


load_all()
KINDS = sorted(set(below(PenstockError)), key=lambda kind: (kind.__module__, kind.__name__))


def test_there_are_many() -> None:
    assert len(KINDS) > 60


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_the_line_names_its_fields(kind: type[PenstockError]) -> None:
    named = {name for _, name, _, _ in string.Formatter().parse(kind.line) if name is not None}
    assert named <= set(getattr(kind, "__dataclass_fields__", ()))
    if kind.line:
        assert kind.__str__ is PenstockError.__str__, "its line is never said"


@pytest.mark.parametrize(
    "error",
    [
        log.UnknownTopic("orders"),
        log.CorruptLog("a.log", 8, "checksum", 1, 3),
        log.StagingDamaged("a.log", 8, "checksum", rolled_back=True),
        log.StagingGap("batch-1", 2, 5, 3),
        log.CommitWaits(7),
        log.InvalidGroupName("", "empty"),
        metadata.MetadataTooNew("meta.db", found=9, known=3),
        broker.BrokerError(broker.Code.OVERLOADED),
        broker.RecordTooLarge(16),
        client.ConnectionLost("127.0.0.1:1", "reset"),
        client.RequestTimedOut("127.0.0.1:1", "PING", timeout_s=0.5),
        client.PublishRefused([client.Refusal(1, 404, "no")], 1),
        BlipMQProtocolError("too long", 4, 400),
        RustLogProtocolError("no such type", 0, 3, BINARY),
    ],
    ids=lambda error: type(error).__name__,
)
def test_it_is_the_same_after_pickling(error: PenstockError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
    assert again.args == error.args
    assert str(error) and "{" not in str(error)
