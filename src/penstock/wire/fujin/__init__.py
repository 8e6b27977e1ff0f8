"""Fujin on the wire: commands without delimiters, two spaces of opcodes."""
