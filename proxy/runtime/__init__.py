"""The process: its counters, its log, its memory and file descriptors, its sibling processes.

Called by all above it; it knows nothing of Kafka.
"""
