"""What the files of a project define, remembered while Spark is told of it: its flows, and where they lead.

Spark keeps definitions to itself. Who wants to run a flow in another way than an update does needs them
too.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.pipeline.tables.files import plain_names

if TYPE_CHECKING:
    from pyspark.pipelines.flow import Flow
    from pyspark.pipelines.graph_element_registry import GraphElementRegistry
    from pyspark.pipelines.output import Output

# CREATE STREAMING TABLE IF NOT EXISTS a.b, CREATE MATERIALIZED VIEW `c`
_CREATED: Final = re.compile(
    r"\bCREATE\s+(?:OR\s+REFRESH\s+)?(?:STREAMING\s+TABLE|MATERIALIZED\s+VIEW)"
    r"\s+(?:IF\s+NOT\s+EXISTS\s+)?([\w.`]+)",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Definitions:
    """`outputs` by name. Of what SQL files define only the names are known."""

    flows: "list[Flow]" = field(default_factory=list)
    outputs: "dict[str, Output]" = field(default_factory=dict)
    sql_tables: set[str] = field(default_factory=set)

    @property
    def tables(self) -> list[str]:
        """Those that are no sinks, without catalog and database."""
        ours = {name for name, one in self.outputs.items() if type(one).__name__ != "Sink"}
        return sorted(plain_names(ours | self.sql_tables))


def remembering(registry: "GraphElementRegistry", into: Definitions) -> "GraphElementRegistry":
    """A registry that hands everything on."""
    from pyspark.pipelines.graph_element_registry import GraphElementRegistry

    class Remembering(GraphElementRegistry):
        def register_output(self, output: "Output") -> None:
            into.outputs[output.name] = output
            registry.register_output(output)

        def register_flow(self, flow: "Flow") -> None:
            into.flows.append(flow)
            registry.register_flow(flow)

        def register_auto_cdc_flow(self, flow: Any) -> None:
            registry.register_auto_cdc_flow(flow)

        def register_sql(self, sql_text: str, file_path: Path) -> None:
            into.sql_tables.update(_CREATED.findall(sql_text))
            registry.register_sql(sql_text, file_path)

    return Remembering()
