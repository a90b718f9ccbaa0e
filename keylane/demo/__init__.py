"""`keylane demo`: a show on a real Kafka that counts every record and keeps its own books."""
