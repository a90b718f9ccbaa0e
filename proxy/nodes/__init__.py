"""Many nodes in front of one cluster: who they are, who serves what, and how they agree on it."""
