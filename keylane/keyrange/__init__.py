"""The hash space of record keys: the hash, inclusive key ranges, and lanes.

Source: docs/decisions/001 and 015.
"""
