"""Which protocol a client asks for with ALPN: a rule over the rows of the table. Pure functions."""

from collections.abc import Sequence

from penstock.server.net.quic.port import Choose, NoApplication
from penstock.server.protocols import QuicRow


def chooser(rows: Sequence[QuicRow]) -> Choose:
    """For the rows that a listener serves. A name of a row wins; a name that only begins with one is
    another version of that protocol and refused; everything else goes to the row without a name, or is
    refused."""
    names = [row.application for row in rows if row.application is not None]
    takes_others = len(names) < len(rows)

    def choose(offered: Sequence[str]) -> str | None:
        for name in names:
            if name in offered:
                return name
        if not takes_others or any(one.startswith(name) for one in offered for name in names):
            raise NoApplication
        # A client that offers names wants one of them agreed on.
        return offered[0] if offered else None

    return choose


def row_for(rows: Sequence[QuicRow], application: str | None) -> QuicRow:
    """The row of what `choose` has agreed on."""
    for row in rows:
        if row.application is not None and row.application == application:
            return row
    return next(row for row in rows if row.application is None)
