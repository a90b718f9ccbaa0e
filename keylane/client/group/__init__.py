"""Membership of a consumer group, by Kafka's two protocols: machines without I/O, and a shell."""
