"""What the embedded engine is as a cluster: one node, which leads every partition."""

from typing import Final

CLUSTER_ID: Final = "standalone"
NODE_ID: Final = "n1"
NODE_NUMBER: Final = 0
EPOCH: Final = 1
ONLINE: Final = "online"
