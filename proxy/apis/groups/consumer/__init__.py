"""Handlers of the consumer protocol (KIP-848): groups whose members the broker assigns."""
