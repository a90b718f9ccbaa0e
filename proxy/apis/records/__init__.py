"""APIs that read and write records, or ask where they stand.

A handler for each API key; called by the routing table of `apis`.
"""
