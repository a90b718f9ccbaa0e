"""Records of the journal as bytes and values: keys, whole states, steps, and what a load has read.

Called by `offsets` and `journal`; it does no I/O.
"""
