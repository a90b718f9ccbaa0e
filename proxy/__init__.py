"""The proxy: stock clients in front, real brokers behind, lanes in between.

In:    Kafka requests.  Out: Kafka responses, in request order.
"""
