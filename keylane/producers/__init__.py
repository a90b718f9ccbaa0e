"""Sequences of idempotent producers: from a lane's to its partition's, and back.

Called by `proxy.apis.records`.
"""
