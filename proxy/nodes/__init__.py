"""Many nodes in front of one cluster: their group in Kafka, their lease, and the plan of owners.

Called by `startup`, and by `commits` for the seat. `lease` says what a node may serve, and how
long.
"""
