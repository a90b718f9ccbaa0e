"""The hash space of record keys: the hash, inclusive key ranges, and lanes.

In:    keys, offsets, lane counts.  Out: hashes, `KeyRange`, `LaneLayout`.
Source: DESIGN "Words"; REQUIREMENTS D-SPLIT, S004-40, G-02, G-03.
"""
