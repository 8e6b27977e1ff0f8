"""The `penstock` command: one module per noun, put together in main.py."""
