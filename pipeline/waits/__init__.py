"""`keylane spark lag`: how long records wait, from when they are produced to their commit."""
