"""TLS and logins: of clients as they pass through, and of keylane itself.

Called by `net`, `cluster`, `control` and `startup`.
"""
