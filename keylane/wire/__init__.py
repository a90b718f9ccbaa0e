"""Kafka's bytes: frames, headers, record batches and their codecs.

In:    bytes.  Out: values, and bytes again.
Source: Kafka protocol guide; Kafka documentation, "Message Format".
"""
