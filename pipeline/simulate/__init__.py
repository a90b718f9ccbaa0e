"""`keylane spark simulate`: a group's queues, for numbers of members and lanes, from a topic."""
