"""The runs that show the GPU engine at work, on any machine with one GPU.

    omnirl data prepare toy --output DATA
    python -m tests.benchmarks.gpu.checkpoint small MODEL
    python -m tests.benchmarks.gpu.checkpoint wide WIDE
    python -m tests.benchmarks.gpu.session --data DATA --model MODEL --wide WIDE --runs RUNS [--steps 20] CASE...

- `full`: all weights; its middle is then gone on from, as `resumed`
- `merged`, `adapter`: LoRA, of which merged weights or the adapter are sent
- `level1`: all weights, with the rollout at sleep level 1; `fused`: without logits; `vllm`: the rollout `vllm`
- `stale`: a rollout that never sleeps and never resets a cache: the sync proof must fail
- `killed`: the rollout engine's process is killed in a step: exit 5, and nothing may be left on the GPU
- `opd`: a student that `omnirl noise` made of the model learns from it, vllm-omni serves both on the one GPU
- `batch64`, `batch256`: the true widths, so many answers of 512 tokens a step: tokens a second of rollout and update,
  and peak memory

`--at-once N` runs N of them side by side. Prints a line of JSON a case: exit code, seconds, the proof, and how both
sides agreed in each step.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
SCORER = ROOT / "tests" / "engine" / "dense_scorer.py"
PEARSON = "training/rollout_actor_probs_pearson_corr"
DIFFERENCE = "training/rollout_probs_diff_mean"
LORA = ["tune.rank = 16", "tune.alpha = 32"]
WIDE = (
    "batch.max_tokens_per_device = 32768", "data.max_response_tokens = 512", "rollout.memory_fraction = 0.4",
    "rollout.options.max_num_seqs = 256", "rollout.capture_sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256]",
    'actor.dtype = "bfloat16"', 'verl."actor_rollout_ref.rollout.ignore_eos" = true',
)  # fmt: skip


def wide(sequences: int, group: int = 8) -> list[str]:
    """Settings of a step of so many answers at the true widths."""
    prompts = sequences // group
    return [*WIDE, f"batch.prompts = {prompts}", f"batch.mini_prompts = {prompts}", f"batch.group_size = {group}"]


CASES: dict[str, dict[str, Any]] = {
    "full": {"resume": True},
    "merged": {"words": ["--tune", "lora"], "sets": [*LORA, "tune.merge = true"]},
    "adapter": {"words": ["--tune", "lora"], "sets": [*LORA, "tune.merge = false"]},
    "level1": {"sets": ["rollout.options.sleep_level = 1"]},
    "fused": {"sets": ['verl."actor_rollout_ref.model.use_fused_kernels" = true']},
    "stale": {"stale": True, "sets": ['verl."actor_rollout_ref.rollout.free_cache_engine" = false']},
    "vllm": {"sets": ['rollout.engine = "vllm"']},
    "killed": {"kill": True},
    # a noised student had 0.061 where the limit is 0.06
    "opd": {"words": ["--algo", "opd"], "noise": 0.25, "sets": ["rollout.proof.most_difference = 0.08"]},
    "batch64": {"sets": wide(64), "sequences": 64},
    "batch256": {"sets": wide(256), "sequences": 256},
}


def without_resets(work: Path) -> Path:
    """A copy of omnirl whose rollout engine resets no cache."""
    copy = work / "without_resets"
    shutil.rmtree(copy, ignore_errors=True)
    for folder in ("omnirl", "recipes"):
        shutil.copytree(ROOT / folder, copy / folder)
    engine = copy / "omnirl" / "engine" / "rollout" / "omni_engine.py"
    text = engine.read_text(encoding="utf-8")
    before = '        if await self.engine_call("reset_prefix_cache", False, True) is False:'
    assert before in text
    engine.write_text(text.replace(before, "        return\n" + before), encoding="utf-8")
    return copy


def noised(model: Path, output: Path, ratio: float) -> Path:
    """A copy of the model with noise in its weights."""
    if not output.exists():
        words = ["noise", str(model), "--ratio", str(ratio), "--output", str(output)]
        subprocess.run([sys.executable, "-m", "omnirl", *words], check=True, stdout=sys.stderr)
    return output


def run(name: str, case: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    data = Path(arguments.data).resolve()
    model = Path(arguments.wide if "sequences" in case else arguments.model).resolve()
    student = noised(model, Path(arguments.runs) / "student", case["noise"]) if "noise" in case else model
    steps = min(arguments.steps, 6) if "sequences" in case else arguments.steps
    sets = [
        f'data.train = "{data}/train.parquet"',
        f'data.val = "{data}/validation.parquet"',
        f'model.path = "{student}"',
        *([f'algo.teacher.path = "{model}"'] if student != model else []),
        f'reward.scorer = "{SCORER}:score"',
        f"train.steps = {steps}",
        f"train.save_every = {steps // 2 if 'resume' in case else -1}",
        "data.filter_overlong_prompts = false",
        f"optim.learning_rate = {arguments.learning_rate}",
        *case.get("sets", []),
        *arguments.set,
    ]
    environment = {**os.environ, "OMNIRL_RECIPES": str(Path(__file__).parent / "recipes")}
    if case.get("stale"):
        environment["PYTHONPATH"] = f"{without_resets(Path(arguments.runs))}:{environment.get('PYTHONPATH', '')}"
    words = [part for line in sets for part in ("--set", line)]
    command = [
        sys.executable,
        "-m",
        "omnirl",
        "train",
        "mixed",
        "--on",
        "bench",
        "--runs",
        arguments.runs,
        "--name",
        name,
    ]
    output = Path(arguments.runs) / f"{name}.out"
    start = time.perf_counter()
    with output.open("w") as sink:
        # a folder without an `omnirl`, so that PYTHONPATH decides which one is run
        process = subprocess.Popen(
            [*command, *case.get("words", []), *words], stdout=sink, stderr=sink, env=environment, cwd=arguments.runs
        )
        noticed = _kill_engine(process, Path(arguments.runs) / name) if case.get("kill") else None
        code = ended(process, arguments.timeout)
    attempt = Path(arguments.runs) / name / "latest"
    result: dict[str, Any] = {"case": name, "exit": code, "seconds": round(time.perf_counter() - start, 1)}
    if noticed is not None and process.returncode is not None:
        result["seconds_after_kill"] = round(time.perf_counter() - noticed, 1)
        result["gpu_processes"] = _gpu_processes()
    result |= told(attempt)
    result |= _metrics(attempt / "metrics.jsonl")
    if "sequences" in case and result["steps"]:
        result |= rates(steps_of(attempt / "metrics.jsonl"), case["sequences"])
    if "resume" in case and code == 0:
        go_back(Path(arguments.runs), "resumed", name, middle=steps // 2, last=steps)
        again = [*command[: command.index("--name")], "--name", "resumed", "--resume"]
        done = subprocess.run(again, env=environment, cwd=arguments.runs, capture_output=True, text=True, check=False)
        found = _metrics(Path(arguments.runs) / "resumed" / "latest" / "metrics.jsonl")
        result["resumed"] = {"exit": done.returncode, "said": done.stderr[-300:] if done.returncode else "", **found}
    if code not in (0, 5):
        result["output"] = output.read_text()[-600:]
    return result


def ended(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """A run's exit code; None for one that took too long."""
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait(30)
        return None


def told(attempt: Path) -> dict[str, Any]:
    """The sync proof and the error of an attempt, where there are any."""
    found: dict[str, Any] = {}
    if (attempt / "sync.json").is_file():
        agreements = json.loads((attempt / "sync.json").read_text())["agreements"]
        keys = ("modality", "weights", "tokens", "pearson", "mean_difference", "verdict")
        found["sync"] = [[row[key] for key in keys] for row in agreements]
    if (attempt / "error.json").is_file():
        found["error"] = json.loads((attempt / "error.json").read_text())["message"][:400]
    return found


def go_back(runs: Path, name: str, after: str, *, middle: int, last: int) -> None:
    """A copy of a run as it was when it had saved the middle step."""
    shutil.copytree(runs / after, runs / name, symlinks=True)
    shutil.rmtree(runs / name / "checkpoints" / f"global_step_{last}", ignore_errors=True)
    (runs / name / "checkpoints" / "latest_checkpointed_iteration.txt").write_text(str(middle))


def steps_of(path: Path) -> list[dict[str, Any]]:
    """The metrics of each step."""
    if not path.is_file():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{"step": row.get("step"), **row.get("data", row)} for row in rows]


def rates(rows: Sequence[dict[str, Any]], sequences: int) -> dict[str, Any]:
    """Medians of the steps: seconds of each part and of what no part accounts for, tokens a second, peak memory."""

    rows = rows[1:] or rows  # the first step compiles and warms up

    def middle(key: str) -> float:
        return statistics.median(row[key] for row in rows if key in row)

    parts = {key.removeprefix("timing_s/"): middle(key) for key in rows[0] if key.startswith("timing_s/")}
    answers = sequences * middle("response_length/mean")
    inner = ("gen", "old_log_prob", "adv", "update_actor", "update_weights", "reward", "ref")
    return {
        "steps": len(rows),
        "seconds_by_part": {name: round(value, 3) for name, value in sorted(parts.items(), key=lambda part: -part[1])},
        "step_s": round(parts["step"], 3),
        "rest_s": round(parts["step"] - sum(parts.get(name, 0.0) for name in inner), 3),
        "rollout_tokens_s": round(answers / parts["gen"]),
        "update_tokens_s": round(middle("perf/total_num_tokens") / parts["update_actor"]),
        "update_peak_gb": round(middle("actor/perf/max_memory_allocated_gb"), 2),
        "pearson": middle(PEARSON),
    }


def _metrics(path: Path) -> dict[str, Any]:
    rows = steps_of(path)
    if not rows:
        return {}

    def of(key: str) -> list[float]:
        return [round(row[key], 5) for row in rows if key in row]

    found: dict[str, Any] = {"steps": len(of(PEARSON))}
    for short, key in {"pearson": PEARSON, "difference": DIFFERENCE}.items():
        values = of(key)
        if values:
            found[short] = {
                "first": values[0],
                "last": values[-1],
                "worst": (min if short == "pearson" else max)(values),
            }
    if values := of("distillation/reverse_kl_k3"):
        found["reverse_kl"] = values
    for key in ("timing_s/step", "timing_s/gen", "timing_s/update_actor", "timing_s/update_weights"):
        if values := of(key):
            found[key] = round(statistics.median(values), 3)
    if values := of("actor/grad_norm"):
        found["grad_norm"] = values[-1]
    return found


def _kill_engine(process: subprocess.Popen[bytes], run_folder: Path) -> float | None:
    """Kill the rollout engine's process once the first step is in the metrics; returns when that was."""
    metrics = run_folder / "attempts" / "1" / "metrics.jsonl"
    while process.poll() is None and not (metrics.is_file() and metrics.read_text().strip()):
        time.sleep(0.2)
    for pid in _descendants(process.pid):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/comm").read_bytes()
        except OSError:
            continue
        if b"EngineCore" in words or b"VLLM::" in words or b"StageEngine" in words:
            os.kill(pid, signal.SIGKILL)
            return time.perf_counter()
    return None


def _descendants(pid: int) -> list[int]:
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def _gpu_processes() -> str:
    listed = subprocess.run(
        ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    return listed.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", nargs="+", choices=sorted(CASES))
    for name in ("data", "model", "runs"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--wide", help="a checkpoint of the true widths, for the cases that measure")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    if not arguments.wide and any("sequences" in CASES[name] for name in arguments.cases):
        parser.error("these cases need --wide CHECKPOINT")
    arguments.runs = str(Path(arguments.runs).resolve())
    Path(arguments.runs).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(arguments.at_once) as pool:
        waiting = [pool.submit(run, name, CASES[name], arguments) for name in arguments.cases]
        for future in as_completed(waiting):
            sys.stdout.write(json.dumps(future.result()) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
