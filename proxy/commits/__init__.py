"""Offsets of groups on lanes: their states, logs and pushes to Kafka, and when they are forgotten.

Called by `apis` under a group's lock, and by readers through `scans`. `group_offsets` is the face.
"""
