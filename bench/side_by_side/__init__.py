"""Direct Kafka, keylane and its peers in turns within one run: `python -m bench.side_by_side`."""
