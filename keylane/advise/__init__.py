"""Advice before keylane is installed: what lanes would bring for a topic, where it ends, its cost.

`keys` is the load of a topic by key, `sample` where it comes from, `speedup` the model, `costs`
what keylane takes, `advice` the judgement; `reader` asks the brokers, all others are pure.
"""
