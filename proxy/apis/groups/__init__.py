"""APIs by which members join groups, stay in them and are described.

A handler for each API key; called by the routing table of `apis`.
"""
