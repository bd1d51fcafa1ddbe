"""Benchmarks that a user can run: the code is here, results are in ``benchmarks/``."""
