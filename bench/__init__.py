"""Benchmarks: `micro` of one part each, and end to end against a direct consumer."""
