"""`keylane spark verify-migration`: are two topics, or the work of two groups, the same?"""
