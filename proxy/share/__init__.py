"""Share groups in the order of keys: sessions at brokers, and the members that wait for records.

The decisions are those of `keylane.share`. Callers: `apis.share`, `control`, `server`.
"""
