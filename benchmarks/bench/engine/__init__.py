"""Measurements of the embedded engine on this machine, compared with others using equal weights."""
