"""Benchmarks that users can run; results are in ``benchmarks/``."""
