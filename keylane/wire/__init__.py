"""Kafka's bytes: frames, headers, record batches and their codecs.

Source: Kafka protocol guide; Kafka documentation, "Message Format".
"""
