"""keylane: more working consumers than partitions on Kafka, every key in order."""

__version__ = "0.1.0"

from keylane.assign import assign

__all__ = ["__version__", "assign"]
