"""The first step of a compiled optimizer, with an empty and with a filled cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from rich.console import Console


def first_steps(name: str, device: str, console: Console) -> dict[str, Any]:
    """Time compiled AdamP's first step on a parameter set in two fresh processes, and print it."""
    with tempfile.TemporaryDirectory() as cache:
        inductor = f"{cache}/inductor"
        caches = {"SPHERENORM_CACHE": cache, "TORCHINDUCTOR_CACHE_DIR": inductor}
        command = [sys.executable, "-m", "benchmarks._first_step", name, device]
        cold, warm = (_output(command, {**os.environ, **caches}) for _ in range(2))
    console.print(
        f"{name}: compiled AdamP's first step {cold['first step s']:.2f} s with an empty cache, "
        f"{warm['first step s']:.2f} s with a filled one; {cold['recompilations']} "
        f"recompilations after step 2 under a schedule; extra memory {warm['extra memory']:.1%}",
        highlight=False,
    )
    return {"cold": cold, "warm": warm}


def _output(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    """The last line that the command prints, which is JSON."""
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(ended.stdout.splitlines()[-1])  # type: ignore[no-any-return]
