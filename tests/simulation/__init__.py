"""The whole of keylane in virtual time: one seed, one run, the same again.

Source: the idea of FoundationDB's simulation and of TigerBeetle's VOPR: the code as it is, on a
clock, a network and a cluster that are made up, with faults drawn from the run's random seed.
"""
