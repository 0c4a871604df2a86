"""ANTLR's runtime: math-verify, OmegaConf and Hydra share one version of it, and fail at run time when it is wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence

from omnirl.doctor.check import Check, Target
from omnirl.doctor.child import ask_module
from omnirl.doctor.packages import find
from omnirl.doctor.probes.grammars import PARTS

PROBE = "omnirl.doctor.probes.grammars"
RUNTIME = "antlr4-python3-runtime"
_TIMEOUT_S = 30.0


def check(target: Target) -> Iterator[Check]:
    """One formula, one configuration and one override, each parsed in a process of its own."""
    answers = {}
    for package in PARTS:
        if package == "hydra-core" and find(package, sys.path) is None:
            continue
        answer, fault = ask_module(PROBE, package, timeout_s=_TIMEOUT_S, environ=target.environ)
        answers[package] = "gave a wrong answer" if answer and not answer.get("right") else fault
    yield judge(answers, sys.path)


def judge(answers: Mapping[str, str], path: Sequence[str]) -> Check:
    """The finding.

    Args:
        answers: what went wrong with each package; empty when nothing did.
        path: where to look for the versions.
    """
    name, wanted = "formulas and configurations", "math-verify, OmegaConf and Hydra parse with one ANTLR runtime"
    runtime = find(RUNTIME, path)
    with_runtime = f"{RUNTIME} {runtime.version}" if runtime else f"no {RUNTIME}"
    bad = [f"{_version(package, path)}: {said}" for package, said in answers.items() if said]
    if bad:
        return Check(name, "fail", f"{'; '.join(bad)} (with {with_runtime})", wanted, f"pip install '{RUNTIME}==4.9.3'")
    works = ", ".join(_version(package, path) for package in answers)
    return Check(name, "ok", f"{works} work with {with_runtime}")


def _version(package: str, path: Sequence[str]) -> str:
    found = find(package, path)
    return f"{package} {found.version}" if found else package
