"""The runs that show two GPUs at work: agreement in every layout, resuming on other devices, and how a step scales.

    omnirl data prepare toy --output DATA
    python -m tests.benchmarks.gpu.checkpoint small SMALL
    python -m tests.benchmarks.gpu.checkpoint wide WIDE
    python -m tests.benchmarks.gpu.two --data DATA --small SMALL --wide WIDE --runs RUNS [--dry-run] [PHASE...]

Phases, each in a few minutes:

- `agree`: every layout at once: full and LoRA, two copies of the rollout and one split in two, the rollout on a GPU of
  its own; with a large learning rate, so that stale weights show.
- `resume`: `full-copies` goes on from its middle on two GPUs, on one, and with a split rollout. Each has a sync proof
  of its own: by modality, with the weights after large steps. `through` are the steps of the run that did not stop.
- `scale`: the true widths on one GPU (two such runs side by side), then on two.

Prints a line of JSON a run. `--dry-run` prints the command lines instead.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.gpu.session import DIFFERENCE, LORA, PEARSON, SCORER, ended, go_back, rates, steps_of, told, wide

STEPS, MIDDLE = 6, 3
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
}
"""NVLink's multicast can put GPUs that a host shares out of service."""
SHOWN = ("actor/pg_loss", "actor/grad_norm", "critic/score/mean", PEARSON, DIFFERENCE)


@dataclass(frozen=True)
class Case:
    """A run: settings and words of `omnirl train`, which GPUs it sees, and the run that it goes on from."""

    sets: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    gpus: str = "0,1"
    after: str | None = None


def devices(count: int, width: int = 1, apart: bool = False) -> tuple[str, ...]:
    found = (f"hardware.devices_per_node = {count}", f"rollout.tensor_parallel = {width}")
    return (*found, "rollout.devices = 1") if apart else found


SMALL = ("rollout.memory_fraction = 0.08", "rollout.eager = true", "optim.learning_rate = 1e-2")
LORA_WORDS = ("--tune", "lora")
SEQUENCES = 512
WIDE = tuple(wide(SEQUENCES))
# A compiled all-reduce is fused with what follows it by kernels that may use multicast.
UNFUSED = ("rollout.options.compilation_config.pass_config.fuse_allreduce_rms = false",)
PHASES: dict[str, list[dict[str, Case]]] = {
    "agree": [
        {
            # no draw, so that a run that went on can be compared with one that went through
            "full-copies": Case((*SMALL, *devices(2), "rollout.top_k = 1", f"train.save_every = {MIDDLE}")),
            "full-split": Case((*SMALL, *devices(2, 2))),
            "lora-copies": Case((*SMALL, *devices(2), *LORA, "tune.merge = true"), LORA_WORDS),
            "lora-split": Case((*SMALL, *devices(2, 2), *LORA, "tune.merge = true"), LORA_WORDS),
            "adapter-split": Case((*SMALL, *devices(2, 2), *LORA, "tune.merge = false"), LORA_WORDS),
            "apart": Case((*SMALL, *devices(2, apart=True))),
        }
    ],
    "resume": [
        {
            "on-two": Case(after="full-copies"),
            "on-one": Case(devices(1), gpus="0", after="full-copies"),
            "on-split": Case(devices(2, 2), after="full-copies"),
        }
    ],
    "scale": [
        {"wide-one": Case((*WIDE, *devices(1)), gpus="0"), "wide-other": Case((*WIDE, *devices(1)), gpus="1")},
        {"wide-copies": Case((*WIDE, *devices(2)))},
        {"wide-split": Case((*WIDE, *UNFUSED, *devices(2, 2)))},
        {"wide-apart": Case((*WIDE, *devices(2, apart=True)))},
    ],
}
"""Runs of a phase: those of one dictionary at once, dictionaries one after the other."""


def command(name: str, case: Case, arguments: argparse.Namespace) -> list[str]:
    """The command line of a run."""
    data = Path(arguments.data).resolve()
    model = Path(arguments.wide if name.startswith("wide") else arguments.small).resolve()
    start = [sys.executable, "-m", "omnirl", "train", "mixed", "--on", "bench"]
    start += ["--runs", str(Path(arguments.runs).resolve()), "--name", name]
    base = () if case.after else (
        f'data.train = "{data}/train.parquet"',
        f'data.val = "{data}/validation.parquet"',
        f'model.path = "{model}"',
        f'reward.scorer = "{SCORER}:score"',
        "data.filter_overlong_prompts = false",
        f"train.steps = {STEPS}",
    )  # fmt: skip
    sets = [word for line in (*base, *case.sets, *arguments.set) for word in ("--set", line)]
    # one answer a prompt: a group of equal ones has no advantages
    alone = ["--", "actor_rollout_ref.rollout.n=1"] if "rollout.top_k = 1" in case.sets else []
    return [*start, *(["--resume"] if case.after else case.words), *sets, *alone]


def run(name: str, case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """A run to its end, and what it shows."""
    runs = Path(arguments.runs).resolve()
    if case.after:
        go_back(runs, name, case.after, middle=MIDDLE, last=STEPS)
    environment = {**NO_MULTICAST, **os.environ, "CUDA_VISIBLE_DEVICES": case.gpus}
    environment["OMNIRL_RECIPES"] = str(Path(__file__).parent / "recipes")
    start = time.perf_counter()
    output = runs / f"{name}.out"
    with output.open("w") as sink:
        process = subprocess.Popen(command(name, case, arguments), stdout=sink, stderr=sink, env=environment)
        code = ended(process, arguments.timeout)
    result = {"case": name, "exit": code, "seconds": round(time.perf_counter() - start, 1)}
    result |= shown(runs / name / "latest", wide=name.startswith("wide"))
    if case.after:
        through = steps_of(runs / case.after / "attempts" / "1" / "metrics.jsonl")
        result["through"] = [{key: values.get(key) for key in SHOWN} for values in through[MIDDLE:]]
    if code != 0:
        result["output"] = output.read_text()[-800:]
    return result


def shown(attempt: Path, *, wide: bool) -> dict[str, Any]:
    """The sync proof, and each step's agreement or, of a wide run, its times and rates."""
    found = told(attempt)
    rows = steps_of(attempt / "metrics.jsonl")
    if wide and rows:
        return found | rates(rows, SEQUENCES)
    return found | {"steps": [{key: values.get(key) for key in SHOWN} for values in rows]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "phases", nargs="*", metavar="PHASE", help="`agree`, `resume`, `scale`; all where none is named"
    )
    for name in ("data", "small", "wide", "runs"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--timeout", type=float, default=420, help="seconds of a run")
    parser.add_argument("--only", action="append", default=[], metavar="RUN", help="only these runs of the phases")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    if unknown := set(arguments.phases) - PHASES.keys():
        parser.error(f"no such phase: {', '.join(sorted(unknown))}")
    for phase in arguments.phases or PHASES:
        for group in PHASES[phase]:
            chosen = {name: case for name, case in group.items() if not arguments.only or name in arguments.only}
            if arguments.dry_run:
                for name, case in chosen.items():
                    line = f"CUDA_VISIBLE_DEVICES={case.gpus} {shlex.join(command(name, case, arguments))}"
                    sys.stdout.write((f"# a copy of {case.after}\n" if case.after else "") + line + "\n")
                continue
            Path(arguments.runs).mkdir(parents=True, exist_ok=True)
            with ThreadPoolExecutor(max(1, len(chosen))) as pool:
                for future in [pool.submit(run, name, case, arguments) for name, case in chosen.items()]:
                    sys.stdout.write(json.dumps(future.result()) + "\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
