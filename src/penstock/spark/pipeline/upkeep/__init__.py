"""What keeps tables small and in few files: keep, optimize."""
