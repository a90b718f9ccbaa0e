"""Bytes on sockets: frames, the order of answers, connections to brokers, bounds of clients.

It knows no API and no topic. Called by `session`, `cluster` and `startup`.
"""
