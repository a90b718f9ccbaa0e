"""`keylane spark audit`: what consumers did, judged from their reports, at once or as a stream."""
