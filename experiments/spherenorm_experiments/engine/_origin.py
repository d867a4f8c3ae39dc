"""The origin of a run: sources, versions and hardware, kept beside its result.

    <root>/runs/<run>/origin.json     versions and hardware, an entry for each that worked on it,
                                      with the optimizer's backend ("compiled" or "rule")
    <root>/sources/<digest>.json      the source of each module that decides it, by its name

Equal sources are kept once. They are what the run's identity is a hash of, so that a result can be
read, and repeated, after the code has changed.
"""

from __future__ import annotations

import functools
import importlib.metadata
import platform
from pathlib import Path
from typing import Any

import torch

from spherenorm import __version__
from spherenorm_experiments.core import digest, source_texts
from spherenorm_experiments.engine._run import Run

PACKAGES = ("torch", "numpy", "scikit-learn", "triton")


def keep_origin(run: Run, **more: str) -> None:
    """Write the origin of a run that is about to be computed here, with `more` entries."""
    texts: dict[str, str] = {}
    for things in run.sources.values():
        texts |= source_texts(*things)
    name = f"sources/{digest(texts)[:16]}.json"
    store = run.store
    if not (store.root / name).exists():
        store.write_json(name, texts)
    here = {"sources": name, **_versions(), **_hardware(run.spec.device), **more}
    known = run.folder.read_json("origin.json") or []
    if here not in known:
        run.folder.write_json("origin.json", [*known, here])


@functools.cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "spherenorm": __version__}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def _hardware(device: str) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else None
    return {"platform": platform.platform(), "cpu": _cpu(), "gpu": gpu}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
