"""Kafka's bytes: frames, headers, record batches and their codecs.

In:    bytes.  Out: values, and bytes again.
Next:  `keylane.kernel` splits batches; `keylane.proxy.apis` decides.
Pure:  no I/O, no clock.
Source: Kafka protocol guide; Kafka documentation, "Message Format".
"""
