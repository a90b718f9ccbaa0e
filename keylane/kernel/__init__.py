"""Kernels over whole blocks of records: check, walk, hash, split into lanes, rebuild.

In:    the record bytes of a fetch answer and the limits of the lanes.  Out: `SplitBlock`.
"""
