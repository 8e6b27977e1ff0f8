"""Penstock: one broker with one durable log, several wire protocols, and a Spark side.

Importing the package decides once whether hot modules load compiled or as source (PENSTOCK_PURE=1).
It loads nothing of the broker itself.
"""

from penstock._pure import force_source_if_asked

# Before any other import of ours: a hot module that is loaded first stays as it was loaded.
force_source_if_asked()

from penstock._build import BuildInfo, build_info  # noqa: E402 - must follow the line above

__version__ = "0.1.0"

__all__ = ["BuildInfo", "__version__", "build_info"]
