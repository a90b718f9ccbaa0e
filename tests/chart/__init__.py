"""The Helm chart: what it renders, checked without a cluster."""
