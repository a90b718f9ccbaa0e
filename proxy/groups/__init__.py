"""Members of groups: the names that they use, their plans, the lanes that they have. No I/O.

`consumer_*` is of the consumer protocol (KIP-848), the rest of the classic one.

Called by `apis`, `commits` and `control`.
"""
