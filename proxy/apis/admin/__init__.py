"""APIs by which administrators read and change topics, rights, configurations and replicas.

A handler for each API key; called by the routing table of `apis`.
"""
