"""The whole way: real Kafka, keylane, clients; each figure beside direct Kafka in one run."""
