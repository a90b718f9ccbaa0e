"""The brokers as keylane itself sees them: topics, leaders, connections of its own principal.

Called by nearly all above it; `cluster` is the face.
"""
