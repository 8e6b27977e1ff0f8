"""Tables of SQL: `CREATE TABLE ... USING penstock OPTIONS (...)`.

Spark hands the options of a table over when it is created, and nothing when it is read. So they are kept
in the metadata of its first column, which Spark keeps with the table and gives to every read. Writing into
such a table is not possible: then Spark gives neither.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock.spark.options import ALL_OPTIONS, OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# Spark tells it where it makes a table, and nowhere else.
PROVIDER: Final = "provider"
OPTIONS_KEY: Final = "penstock.options"
_SECRET: Final = "accesskey"


def with_options(schema: "StructType", given: Mapping[str, str]) -> "StructType":
    """The schema of a table that is being made keeps the options. Raises OptionError for a key, which
    everybody could read there."""
    from pyspark.sql.types import StructField, StructType

    names = {name.lower(): name for name in given}
    if PROVIDER not in names:
        return schema
    if _SECRET in names:
        raise OptionError("accessKey", "would be readable in the table: give keyFile or keyEnv")
    known = {one.lower() for one in ALL_OPTIONS}
    kept = {low: str(given[name]) for low, name in names.items() if low in known}
    first, *others = schema.fields
    metadata = {**(first.metadata or {}), OPTIONS_KEY: json.dumps(kept, sort_keys=True)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def options_of(schema: "StructType", given: Mapping[str, str]) -> Mapping[str, str]:
    """Those of this read, and behind them those of its table."""
    for one in schema.fields:
        if one.metadata and OPTIONS_KEY in one.metadata:
            return {**json.loads(one.metadata[OPTIONS_KEY]), **given}
    return given
