"""Parts of a node, and checks before it serves.

Parts are made in the order in which they need each other. Rights, Kafka's offsets topic and the
seat among nodes are asked for at the start. Called by `server` alone.
"""
