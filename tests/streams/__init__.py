"""A stock Kafka Streams application, compiled and started by tests.

Called by `tests/integration` and `tests/long`.
"""
