"""The batch: its layout, building, reading and its Arrow face."""
