"""`keylane demo`: a show on a real Kafka that counts every record and keeps its own books.

In:    the machine.  Out: a live view, and a verdict: nothing lost, every key in order.
Next:  `cli` adds the command; `scenario` is what happens when; `ledger` is the verdict.
Shell: child processes and the terminal; `scenario`, `ledger`, `orders` and `events` are pure.
"""
