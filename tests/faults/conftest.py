"""Who writes: every fault is met by the commit thread and by the event loop."""

from collections.abc import Iterator

import pytest
from faults.log_kit import OpenLog


@pytest.fixture(params=["queued", "idle"])
def writes(request: pytest.FixtureRequest) -> Iterator[str]:
    """For `pytestmark = pytest.mark.usefixtures("writes")`."""
    OpenLog.write_idle = request.param == "idle"
    yield request.param
    OpenLog.write_idle = False
