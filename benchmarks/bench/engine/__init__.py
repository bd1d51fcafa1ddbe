"""What the embedded engine does on this machine, beside others with the same weights."""
