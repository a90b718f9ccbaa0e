"""Configuration of a node: read once at the start, checked with the key that is wrong.

`sources` reads it, `node` has its keys; called by all.
"""
