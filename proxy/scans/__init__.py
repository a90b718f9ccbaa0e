"""What readers have scanned, on this node and on others: positions, load and lag of lanes.

Called by `commits`, `apis` and `control`; readers of `lanes` publish to it.
"""
