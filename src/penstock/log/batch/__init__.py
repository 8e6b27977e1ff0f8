"""The batch: its layout, building, reading, and conversion to and from Arrow."""
