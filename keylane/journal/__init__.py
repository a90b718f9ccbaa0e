"""The individual commit journal in Kafka: opened under a fence, read, appended to, owned.

It writes states of `offsets` as records of `__individual_commit_offsets`, and reads them back.
Called by `proxy.commits`.
"""
