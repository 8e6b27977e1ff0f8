"""Which columns of a Parquet file of Spark are moments, with the type that says so.

Spark writes a moment with 96 bits, or as microseconds in UTC. Arrow reads the first as a time without a
zone: Spark would take that for another type, and files of both kinds, as an optimised table has them,
could not be read as one.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def schema_with_zones(file: Any) -> "pa.Schema":
    """The columns of a `pyarrow.parquet.ParquetFile`, those of 96 bits as moments: microseconds in UTC."""
    import pyarrow as pa

    columns = [file.schema.column(number) for number in range(len(file.schema.names))]
    moments = {one.path for one in columns if one.physical_type == "INT96"}

    def typed(kind: "pa.DataType", path: str) -> "pa.DataType":
        if pa.types.is_timestamp(kind):
            return pa.timestamp("us", "UTC") if path in moments else kind
        if pa.types.is_struct(kind):
            return pa.struct([named(one, path) for one in kind])
        if pa.types.is_list(kind):
            inner = kind.value_field
            return pa.list_(inner.with_type(typed(inner.type, f"{path}.list.element")))
        if pa.types.is_map(kind):
            key, item = kind.key_field, kind.item_field
            return pa.map_(
                key.with_type(typed(key.type, f"{path}.key_value.key")),
                item.with_type(typed(item.type, f"{path}.key_value.value")),
            )
        return kind

    def named(field: "pa.Field", path: str) -> "pa.Field":
        return field.with_type(typed(field.type, f"{path}.{field.name}" if path else field.name))

    whole = file.schema_arrow
    return pa.schema([named(one, "") for one in whole], metadata=whole.metadata)
