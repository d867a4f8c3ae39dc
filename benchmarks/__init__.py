"""Benchmarks of steps and sweeps, as ratios within one run: `python -m benchmarks`."""
