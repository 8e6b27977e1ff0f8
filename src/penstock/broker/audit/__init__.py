"""The audit trail: what is recorded, where it is kept, and how it is read."""
