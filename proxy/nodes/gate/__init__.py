"""Proofs among nodes: what is signed, checked, and put out of the nodes' group.

Called by `nodes.group` and `nodes.lone_seat`.
"""
