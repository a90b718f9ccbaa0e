"""Share groups in the order of keys: decisions on records, locks and sessions, without I/O.

`proxy.share` calls them with what brokers answer, `proxy.apis.share` with what members ask.
"""
