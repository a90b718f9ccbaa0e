"""Client connections: each is paired with one connection to its broker.

A session cuts bytes into requests, relays them or has a handler of `apis` serve them, and answers
in the order of the requests. Called by `server` and `startup`.
"""
