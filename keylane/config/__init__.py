"""Configuration of a node: read once at the start, checked with the key that is wrong.

`node` is the face; called by all.
"""
