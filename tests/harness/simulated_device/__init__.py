"""A device "sim" of three indices, for tests on machines without an accelerator.

Its numbers are the CPU's, its errors CUDA's. `load` registers it for the whole process, so that
tests use it in processes of their own; building it takes a minute once, torch keeps the result.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import types
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def load() -> Any:
    """Build and register the device.

    Returns:
        The extension: `waits()` since `reset_waits()` by operation, `set_float64(supported)`.
    """
    extension = _build()
    torch.utils.rename_privateuse1_backend("sim")
    module: Any = types.ModuleType("torch.sim")
    module.is_available = module.is_initialized = lambda: True
    module.device_count = lambda: 3
    module.current_device = extension.current
    module.set_device = lambda device: extension.set_current(torch.device(device).index or 0)
    module.device = contextlib.nullcontext
    module._is_in_bad_fork = lambda: False
    module._lazy_init = lambda: None
    module.manual_seed = module.manual_seed_all = lambda seed: None
    module.get_rng_state = _rng_state
    module.set_rng_state = lambda state, device="sim": None
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    module.synchronize = lambda device=None: None
    torch._register_device_module("sim", module)
    torch.utils.generate_methods_for_privateuse1_backend()
    return extension


def _build() -> Any:
    """Compile the extension, or load it if that has been done.

    The system lets go of `flock` when a process dies. torch's own lock is a file, which a process
    that is killed leaves behind, and for which every later one would wait.
    """
    from torch.utils.cpp_extension import load as build

    name, source = "spherenorm_simulated_device", Path(__file__).with_name("device.cpp")
    digest = hashlib.sha256(source.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    folder = Path.home() / ".cache" / name / digest
    folder.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{digest}.flock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        (folder / "lock").unlink(missing_ok=True)
        # Another checkout has another path, for which ninja would compile the same text anew.
        copy = folder / "device.cpp"
        if not copy.exists():
            copy.write_bytes(source.read_bytes())
        flags = ["-O0", "-g0"]
        return build(name, [str(copy)], extra_cflags=flags, build_directory=str(folder))


def _rng_state(device: str = "sim") -> Tensor:
    return torch.get_rng_state()
