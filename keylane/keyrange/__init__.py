"""The hash space of record keys: the hash, inclusive key ranges, and lanes.

In:    keys, offsets, lane counts.  Out: hashes, `KeyRange`, `LaneLayout`.
Source: docs/decisions/001 and 015.
"""
