"""APIs that commit, fetch and delete offsets of groups, plain or in transactions.

A handler for each API key, and what they share; called by the routing table and by `apis.groups`.
"""
