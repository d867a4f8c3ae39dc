"""Checks of the laws on float64 runs.

A check runs the one simulation loop, `simulate`, on a problem and compares it with the law:

| law | check | on |
|---|---|---|
| norm growth | `check`, `Check` | networks and a toy problem, `PROBLEMS` |
| equilibrium | `check_equilibrium` | random gradients |
| turn at rest | `check_turn` | random gradients |
"""
