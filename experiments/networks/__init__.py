"""Networks: the models of the benchmarks, one family per file."""
