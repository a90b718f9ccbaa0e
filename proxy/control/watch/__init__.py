"""Groups over time: samples that the node takes by itself, and what follows from them.

Called by `startup`, and by what the control port shows. `progress` and `history` do no I/O.
"""
