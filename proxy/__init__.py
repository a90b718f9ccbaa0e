"""The proxy: stock clients in front, real brokers behind, lanes in between.

In:    Kafka requests.  Out: Kafka responses, in request order.
Next:  `server` accepts, `connection` orders, `apis` decide, `lane_fetch` serves records.
Shell: sub-modules `server`, `upstream`, `reader`, `lane_fetch`, `control`; the rest is pure.
"""
