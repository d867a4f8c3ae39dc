"""The networks of the paper's benchmarks: one family in each file, full size and small."""
