"""Jobs on Spark beside keylane: what keys weigh, where to cut, what consumers really did.

Functions from DataFrame to DataFrame, and one module that owns the session: `job`. The proxy
never imports this package, and nothing here is imported before a command needs it.
"""
