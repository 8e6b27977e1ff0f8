"""The HTTP side: probes, metrics, the API."""
