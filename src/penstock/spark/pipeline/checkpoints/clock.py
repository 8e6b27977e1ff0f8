"""Whether the clock goes on from where it was: silver and its watermark rely on that.

The time of a batch is that of Spark's clock. Behind the watermark Spark leaves rows out without a word,
so after a clock that was wrong, and has been set right, hours of rows could be missing.
"""

import json
from typing import ClassVar, Final

from penstock.errors import ExitCode
from penstock.spark.pipeline.checkpoints.reading import flow_checkpoints, last_lines
from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.project import Project

# Clocks of machines in one network differ by less, and a watermark is longer.
MOST_BACK_S: Final = 60.0


class ClockWentBack(PipelineError):
    flow: str
    back_s: float

    exit_code: ClassVar[int] = ExitCode.FAILED
    line = (
        "the clock is {back_s:.0f} s behind the last batch of {flow}, and Spark would leave rows out; "
        "set the clock right, or fill the tables anew with --full-refresh-all"
    )


def require_clock(project: Project, now_s: float) -> None:
    """Raises ClockWentBack."""
    for flow, checkpoint in flow_checkpoints(project):
        lines = last_lines(checkpoint, "offsets")
        if len(lines) < 2:
            continue
        back_s = json.loads(lines[1]).get("batchTimestampMs", 0) / 1000 - now_s
        if back_s > MOST_BACK_S:
            raise ClockWentBack(flow, back_s)
