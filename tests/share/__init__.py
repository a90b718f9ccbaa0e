"""Stock Java share consumers, compiled and started by tests.

Called by `tests/integration` and `tests/long`.
"""
