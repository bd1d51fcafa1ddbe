"""Which runs may hold memory at the workers."""
