"""Measurements of the embedded engine on this machine, beside others with the same weights."""
