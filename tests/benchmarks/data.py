"""How `omnirl data prepare` compares with another converter, in one run. Run on demand:

    python tests/benchmarks/data.py [SOURCE...] [--rounds N] [--rows N] [--peer-mmk12 FILE] [--peer-avqa FILE]

For each source both convert the same made-up input in turn: wall seconds, CPU seconds and peak memory of the process
and all its children, and the medians of the round-by-round ratios. omnirl is measured with and without looking into
media: peers look into MMK12's pictures only. For MMK12 the pictures that come out are compared with those that went in,
byte by byte. `growth` converts text inputs of 1,000, 10,000 and 100,000 records: memory must not grow with them.

A peer is a program with `--local_dataset_path IN --local_save_dir OUT` (AVQA: `--input_dir`, `--output_dir`); without
one, the converter of `data_contenders.py` stands in. Memory is the proportional set size, sampled.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT), str(HERE)]

import data_inputs  # noqa: E402

SAMPLING_S = 0.05
GROWTH = (1_000, 10_000, 100_000)
MOST_GROWTH = 1.4
"""How much more memory of its own the last size may take than the one before. A row group is full at some 20,000 texts;
from there on a hash of each prompt is all that is added.
"""


@dataclass(frozen=True)
class Case:
    """One source: what makes its input, rows by split for a size, and the options that its peers take."""

    name: str
    make: Callable[[Path, dict[str, int]], None]
    splits: tuple[str, str]
    rows: int
    peer_options: tuple[str, str] = ("--local_dataset_path", "--local_save_dir")

    def sizes(self, rows: int) -> dict[str, int]:
        return dict(zip(self.splits, (rows, max(100, rows // 10)), strict=True))


CASES = {
    case.name: case
    for case in (
        Case("mmk12", data_inputs.mmk12, ("train", "test"), 4000),
        Case("avqa", data_inputs.avqa, ("train", "valid"), 6000, ("--input_dir", "--output_dir")),
        Case("gsm8k", data_inputs.gsm8k, ("train", "test"), 8000),
    )
}


@dataclass(frozen=True)
class Cost:
    """`peak_mb` counts pages of mapped files, which the system can take back; `own_mb` does not."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    own_mb: float


def tree_mb(pid: int) -> tuple[float, float]:
    """The memory of a process and all below it, shared pages counted in proportion; then without mapped files."""
    total, own = 0, 0
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return 0.0, 0.0
    for process in processes:
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith("Pss")}
        total += sizes.get("Pss", 0)
        own += sizes.get("Pss_Anon", sizes.get("Pss", 0))
    return total / 1024, own / 1024


def measure(command: list[str], environment: dict[str, str]) -> Cost:
    """Run a command to its end; raises when it fails."""
    peaks, done = [0.0, 0.0], threading.Event()

    def watch(pid: int) -> None:
        while not done.wait(SAMPLING_S):
            peaks[:] = map(max, peaks, tree_mb(pid))

    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, stdin=subprocess.DEVNULL, env=environment)
        watcher = threading.Thread(target=watch, args=(process.pid,))
        watcher.start()
        code = process.wait()
        wall_s = time.perf_counter() - start
        done.set()
        watcher.join()
        if code:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)} failed with {code}:\n{said.read().decode(errors='replace')[-3000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, *peaks)


def ours(case: Case, source: Path, target: Path, work: Path, *more: str) -> Cost:
    shutil.rmtree(target, ignore_errors=True)
    words = ["data", "prepare", case.name, "--input", str(source), "--output", str(target), *more]
    return measure([sys.executable, "-m", "omnirl", *words], _environment(work))


def theirs(case: Case, peer: Path | None, source: Path, target: Path, work: Path) -> Cost:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    if peer is None:
        words = [str(HERE / "data_contenders.py"), case.name, str(source), str(target)]
    else:
        reading, writing = case.peer_options
        words = [str(peer), reading, str(source), writing, str(target)]
    # Each round converts for the first time: what `datasets` has cached of the last one is thrown away.
    shutil.rmtree(work / "cache", ignore_errors=True)
    return measure([sys.executable, *words], _environment(work))


def _environment(work: Path) -> dict[str, str]:
    """As where packages are installed: their bytecode is kept, in a folder of its own, whatever is set outside."""
    cache = {"HF_HOME": str(work / "cache"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    bytecode = {"PYTHONPYCACHEPREFIX": str(work / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
    return {**os.environ, **cache, **bytecode, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def compare(case: Case, rows: int, rounds: int, peer: Path | None, work: Path) -> bool:
    source, mine, other = (work / f"{case.name}-{name}" for name in ("in", "ours", "peer"))
    case.make(source, case.sizes(rows))
    contenders: dict[str, Callable[[], Cost]] = {
        peer.name if peer else "stand-in": lambda: theirs(case, peer, source, other, work),
        "omnirl, not looking": lambda: ours(case, source, mine, work, "--no-verify-media"),
        "omnirl": lambda: ours(case, source, mine, work),
    }
    found: dict[str, list[Cost]] = {label: [] for label in contenders}
    for number in range(rounds + 1):
        for label, run in contenders.items():
            cost = run()
            # the first round compiles what is imported, and is not counted
            if number:
                found[label].append(cost)
    base = next(iter(found.values()))
    _say(f"{case.name}, {rows} rows, medians of {rounds} rounds (ratio to the first)")
    for label, costs in found.items():
        said = [f"  {label:20}"]
        for name, unit in (("wall_s", "s"), ("cpu_s", "CPU s"), ("peak_mb", "MB"), ("own_mb", "MB own")):
            values = [getattr(cost, name) for cost in costs]
            ratio = statistics.median(value / getattr(one, name) for value, one in zip(values, base, strict=True))
            said.append(f"{statistics.median(values):9.2f} {unit} ({ratio:.3f})")
        _say(" ".join(said))
    return case.name != "mmk12" or same_pictures(source, mine, other)


def same_pictures(source: Path, mine: Path, other: Path) -> bool:
    """Whether every picture kept is, byte for byte, the one that went in under its id; says who kept how many."""
    given = {name: _digest(held) for name, held in data_inputs.pictures_in(sorted(source.glob("*.parquet")), "id")}
    kept: dict[str, set[str]] = {}
    changed = 0
    for label, folder in (("omnirl", mine), ("peer", other)):
        kept[label] = set()
        for name, held in data_inputs.pictures_in(sorted(folder.glob("*.parquet")), "extra_info.id"):
            kept[label].add(name)
            changed += label == "omnirl" and given[name] != _digest(held)
    both = len(kept["omnirl"] & kept["peer"])
    counts = f"{len(given)} in, {len(kept['omnirl'])} and {len(kept['peer'])} out, {both} of them the same"
    _say(f"  pictures: {counts}, {changed} changed")
    return not changed


def growth(work: Path, peers: dict[str, Path | None]) -> bool:
    """Peak memory of text inputs by size; whether ours stays what it is."""
    flat = True
    for name in ("avqa", "gsm8k"):
        case = CASES[name]
        peaks: list[float] = []
        for rows in GROWTH:
            source = work / f"growth-{name}-{rows}"
            case.make(source, case.sizes(rows))
            mine = ours(case, source, work / "growth-ours", work)
            other = theirs(case, peers[name], source, work / "growth-peer", work)
            peaks.append(mine.own_mb)
            _say(f"growth {name:6} {rows:7} records: omnirl {_shown(mine)} | peer {_shown(other)}")
            shutil.rmtree(source)
        ratio = peaks[-1] / peaks[-2]
        flat = flat and ratio <= MOST_GROWTH
        _say(f"  {name}: {GROWTH[-1] // GROWTH[-2]} times the records take {ratio:.2f} times the memory of its own")
    return flat


def _digest(held: bytes) -> bytes:
    return hashlib.sha256(held).digest()


def _shown(cost: Cost) -> str:
    return f"{cost.wall_s:7.2f} s {cost.cpu_s:7.2f} CPU s {cost.peak_mb:5.0f} MB, own {cost.own_mb:4.0f}"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare `omnirl data prepare` with another converter.")
    parser.add_argument("what", nargs="*", metavar="SOURCE", help=f"{', '.join(CASES)} or growth; all by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, help="rows of the first split; the other has a tenth")
    for name in CASES:
        parser.add_argument(f"--peer-{name}", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    peers: dict[str, Path | None] = {name: getattr(chosen, f"peer_{name}") for name in CASES}
    good = True
    with tempfile.TemporaryDirectory(prefix="omnirl-data-") as folder:
        for name in chosen.what or [*CASES, "growth"]:
            if name == "growth":
                good = growth(Path(folder), peers) and good
            else:
                case = CASES[name]
                good = compare(case, chosen.rows or case.rows, chosen.rounds, peers[name], Path(folder)) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
