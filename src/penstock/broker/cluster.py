"""What every node of a cluster has in common, whatever the engine: there are no elections here."""

from typing import Final

NODE_NUMBER: Final = 0
EPOCH: Final = 1
ONLINE: Final = "online"
