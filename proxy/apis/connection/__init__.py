"""APIs by which a client finds its way: versions, login, brokers, topics.

A handler for each API key; called by the routing table of `apis`.
"""
