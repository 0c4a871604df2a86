"""A verl platform for machines without an accelerator: gloo collectives and logical Ray device slots."""

from __future__ import annotations

import contextlib
import resource
import types
from collections.abc import Iterator
from typing import Any

import psutil
import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

NAME = "cpu"


def _resident_bytes(*_: Any) -> int:
    return psutil.Process().memory_info().rss


def _peak_resident_bytes(*_: Any) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _free_and_total_bytes(*_: Any) -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _device_module() -> types.ModuleType:
    """`torch.cpu` with the memory and RNG calls that verl makes of a device module.

    `is_available()` is False, so that verl's cache clearing and per-device RNG saving skip the device. Memory figures
    are those of the process: `perf/max_memory_allocated_gb` is its peak resident size.
    """
    module = types.ModuleType("omnirl_cpu_device")
    functions = {
        "is_available": lambda: False,
        "is_initialized": lambda: True,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "get_device_name": lambda *_: "CPU",
        "mem_get_info": _free_and_total_bytes,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        "current_stream": torch.cpu.current_stream,
        "stream": torch.cpu.stream,
        "Stream": torch.cpu.Stream,
    }
    functions |= dict.fromkeys(("memory_allocated", "memory_reserved"), _resident_bytes)
    functions |= dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), _peak_resident_bytes)
    functions |= dict.fromkeys(
        (
            "set_device",
            "synchronize",
            "empty_cache",
            "reset_peak_memory_stats",
            "manual_seed",
            "manual_seed_all",
        ),
        _nothing,
    )
    for name, function in functions.items():
        setattr(module, name, function)
    return module


@PlatformRegistry.register(platform=NAME)
class CPUPlatform(PlatformBase):
    """Selected with `VERL_PLATFORM=cpu`, never detected: a head node without a GPU must not become a CPU run."""

    _module = _device_module()

    @property
    def device_name(self) -> str:
        return NAME

    @property
    def vendor_name(self) -> str:
        return NAME

    @property
    def device_module(self) -> types.ModuleType:
        return self._module

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False

    def current_device(self) -> torch.device:
        return torch.device(NAME)

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        return None

    def synchronize(self, device_index: int | None = None) -> None:
        return None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        return None

    def profiler_stop(self) -> None:
        return None

    def ray_resource_name(self) -> str:
        # verl's resource pools count "GPU" or "NPU" and nothing else; `ray.init(num_gpus=N)` offers logical ones
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
