"""`keylane demo`: a show on a real Kafka that counts every record and keeps its own books.

In:    the machine.  Out: a live view, and a verdict: nothing lost, every key in order.
"""
