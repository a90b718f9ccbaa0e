"""`keylane spark profile`: what the keys of a topic weigh, once or as it grows."""
