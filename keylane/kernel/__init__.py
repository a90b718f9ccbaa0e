"""Kernels over whole blocks of records: check, walk, hash, split into lanes, rebuild.

In:    the record bytes of a fetch answer and the limits of the lanes.  Out: `SplitBlock`.
Next:  `split.split_block` is the entry; read `status`, `spans`, `rewrite` in this order.
Pure:  no I/O, no clock; everything runs without the GIL.
"""
