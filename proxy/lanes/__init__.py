"""Lanes read once per partition: fetches under way, readers, splits in threads, memory of reads.

`fetcher` is the face for `apis`; `reader` publishes blocks to `scans` through its listeners.
"""
