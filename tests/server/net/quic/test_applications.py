"""Which protocol a client gets, by the names that it offers with ALPN."""

from typing import Any

import pytest

from penstock.server.net.quic.applications import chooser, row_for
from penstock.server.net.quic.port import NoApplication
from penstock.server.protocols import ProtocolSection, QuicRow


def row(name: str, application: str | None) -> QuicRow:
    def connection(port: Any, quic: Any, terms: Any) -> Any:
        raise AssertionError("not opened here")

    return QuicRow(
        name=name,
        title=name,
        frame_size=lambda buffer, start, end: 0,
        listeners={},
        section=ProtocolSection,
        application=application,
        connection=connection,
    )


NAMED = row("fujin", "fujin")
OTHER = row("felix", None)


@pytest.mark.parametrize(
    ("offered", "expected", "protocol"),
    [
        ([], None, "felix"),
        (["fujin"], "fujin", "fujin"),
        (["h3", "fujin"], "fujin", "fujin"),
        (["fujin/1", "fujin"], "fujin", "fujin"),
        (["felix"], "felix", "felix"),
        (["h3", "hq"], "h3", "felix"),
    ],
)
def test_both_on_one_port(offered: list[str], expected: str | None, protocol: str) -> None:
    rows = [NAMED, OTHER]
    assert chooser(rows)(offered) == expected
    assert row_for(rows, expected).name == protocol


@pytest.mark.parametrize("offered", [["fujin/1"], ["fujin2", "h3"], ["h3", "fujin/1"]])
def test_other_versions_are_refused(offered: list[str]) -> None:
    with pytest.raises(NoApplication):
        chooser([NAMED, OTHER])(offered)


@pytest.mark.parametrize("offered", [[], ["h3"], ["fujin/1"]])
def test_a_listener_of_the_named_one_takes_nothing_else(offered: list[str]) -> None:
    with pytest.raises(NoApplication):
        chooser([NAMED])(offered)


@pytest.mark.parametrize("offered", [[], ["fujin"], ["fujin/1"], ["h3"]])
def test_a_listener_of_the_other_one_takes_all(offered: list[str]) -> None:
    assert chooser([OTHER])(offered) == (offered[0] if offered else None)
