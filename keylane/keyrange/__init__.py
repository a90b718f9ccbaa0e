"""The hash space of record keys: the hash, inclusive key ranges, and lanes.

In:    keys, offsets, lane counts.  Out: hashes, `KeyRange`, `LaneLayout`.
Next:  `keylane.kernel` does the same over whole blocks; plans and offsets speak in key ranges.
Pure:  no I/O, no clock.
Source: DESIGN "Words"; REQUIREMENTS D-SPLIT, S004-40, G-02, G-03.
"""
