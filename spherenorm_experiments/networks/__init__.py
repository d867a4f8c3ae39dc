"""The networks of the benchmarks, a file for each family: full-size and small by arguments."""
