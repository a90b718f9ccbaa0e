"""Small benchmarks: one program per part, one line per figure."""
