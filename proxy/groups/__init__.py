"""Members of groups: the names that they use, their plans, the lanes that they gained. No I/O.

Called by `apis`, `commits` and `control`.
"""
