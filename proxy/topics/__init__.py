"""Topics for clients and nodes: lanes, key ranges, switches, places. I/O in one store.

Called by all above it. `registry` says which names mean lanes.
"""
