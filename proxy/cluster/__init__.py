"""The brokers as keylane itself sees them: topics, leaders, and connections with its own principal.

Called by nearly all above it; `cluster` is the face.
"""
