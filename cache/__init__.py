"""The bounded cache of slices that were split for lanes and wait for them.

`slice_cache` bounds the bytes of all partitions together. `lane_log` knows for one partition what
each lane can be given from memory and what has to be read again. Both are pure.
"""
