"""The control port: health, metrics, groups, assignments, switches, and the live page.

Called by `startup`. It reads what `commits`, `scans` and `topics` know, and changes settings only.
"""
