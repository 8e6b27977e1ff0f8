"""A RustLog conversation."""
