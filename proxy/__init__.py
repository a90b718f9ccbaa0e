"""The proxy: stock clients in front, real brokers behind, lanes in between."""
