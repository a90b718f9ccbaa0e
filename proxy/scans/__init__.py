"""Scanned blocks of this node's readers and of others: positions, load and lag of lanes.

Called by `commits`, `apis` and `control`; readers of `lanes` publish to it.
"""
