"""All checks, side by side; one that fails to answer does not hide the others."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from omnirl.doctor import (
    ascend,
    data_files,
    disk,
    engine,
    grammars,
    imports,
    limits,
    media_tools,
    model_files,
    network,
    nvidia,
    packages,
    ray_cluster,
    ray_leftovers,
    verl_config,
)
from omnirl.doctor.check import ORDER, Check, Target
from omnirl.doctor.child import give_up
from omnirl.errors import OmniError

Part = Callable[[Target], Iterable[Check]]

PARTS: dict[str, Part] = {
    # The slowest, which wait for processes of their own, come first.
    "Ray cluster": ray_cluster.check,
    "formulas and configurations": grammars.check,
    "verl's keys": verl_config.check,
    "media": media_tools.check,
    "NVIDIA GPUs": nvidia.check,
    "Ascend NPUs": ascend.check,
    "packages": packages.check,
    "imports": imports.check,
    "rollout": engine.check,
    "model": model_files.check,
    "data": data_files.check,
    "disk": disk.check,
    "Ray's files": ray_leftovers.check,
    "limits": limits.check,
    "network": network.check,
}
_AT_ONCE = 4


def examine(target: Target, parts: dict[str, Part] | None = None) -> list[Check]:
    """Every finding, worst first, and in the order of the parts among equals."""
    chosen = parts or PARTS
    give_up(now=False)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="doctor") as pool:
        answers = [pool.submit(_answer, name, part, target) for name, part in chosen.items()]
        try:
            found = [one for answer in answers for one in answer.result()]
        except BaseException:  # Ctrl-C must not wait for programs that hang
            give_up()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return sorted(found, key=lambda one: ORDER.index(one.verdict))


def counts(checks: Iterable[Check]) -> dict[str, int]:
    """How many findings there are of each verdict, worst first."""
    verdicts = [one.verdict for one in checks]
    return {verdict: verdicts.count(verdict) for verdict in ORDER}


def _answer(name: str, part: Part, target: Target) -> list[Check]:
    """What a part found before it ended, and why it ended early if it did."""
    found: list[Check] = []
    try:
        for one in part(target):  # not extend(): what came before a failure is kept
            found.append(one)
    except (OSError, ValueError, subprocess.SubprocessError, OmniError) as error:
        said = " ".join(str(error).split())[:300]
        found.append(Check(name, "warn", f"could not be looked at: {type(error).__name__}: {said}"))
    return found
