"""What the judge of media costs beside ffprobe and ffmpeg, one after the other for each video. Run on demand:

    python tests/benchmarks/probing.py [CLIPS] [ROUNDS]

The clips are 20 s of 640x480 H.264 with AAC, as in a set of web videos: most with a soundtrack, some mute, some with
noise for a soundtrack, some cut. All ways run in processes of their own and in turn; what counts is the CPU time (user
+ system) of the whole process tree. Every judge must keep the same clips. The bar is 20 times less for a usable clip
than the sequential way, less what each way costs without any clips; the programs look again at the others, so the
ratio for the whole set depends on how many these are.
"""

from __future__ import annotations

import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BAR = 20.0
SECONDS = 20
WAYS = ("sequential", "judge, programs", "judge, cold", "judge, warm cache")
SHARES = {"soundtrack": 0.88, "mute": 0.07, "noise": 0.03, "cut": 0.02}


def ff(*words: str | Path) -> None:
    subprocess.run(["ffmpeg", "-v", "error", "-y", "-nostdin", *map(str, words)], check=True)


def make_clips(folder: Path, count: int) -> dict[str, str]:
    """Write the clips; name -> what is wrong with it. Each is a copy of one of a few, with a title of its own."""
    sources = []
    for number in range(4):
        path = folder / f"source{number}.mp4"
        picture = f"testsrc2=size=640x480:rate=30:duration={SECONDS},noise=alls=8:allf=t"
        sound = (
            f"sine=frequency={300 * (number + 1)}:sample_rate=44100:duration={SECONDS},aformat=channel_layouts=stereo"
        )
        codecs = [
            "-c:v",
            "libx264",
            "-preset",
            "veryfast",
            "-crf",
            "28",
            "-pix_fmt",
            "yuv420p",
            "-c:a",
            "aac",
            "-b:a",
            "96k",
        ]
        front = ["-movflags", "+faststart"] if number % 2 else []
        ff("-f", "lavfi", "-i", picture, "-f", "lavfi", "-i", sound, *codecs, *front, path)
        sources.append(path)
    rng = random.Random(0)
    kinds = {}
    for number in range(count):
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
        # One of each, however few clips there are.
        kind = dict(enumerate(SHARES)).get(number, kind)
        path = folder / f"clip{number:05d}.mp4"
        change = {"mute": ["-an"], "noise": ["-bsf:a", "noise=amount=2"]}.get(kind, [])
        front = ["-movflags", "+faststart"] if kind == "cut" or number % 2 else []
        ff("-i", rng.choice(sources), "-c", "copy", *change, *front, "-metadata", f"title={number}", path)
        if kind == "cut":
            os.truncate(path, path.stat().st_size * 2 // 5)
        kinds[path.name] = kind
    return kinds


def sequential(paths: list[Path]) -> list[str]:
    """The names of clips whose first audio stream is there and decodes, by the plain use of the programs."""
    kept = []
    for path in paths:
        probe = ["ffprobe", "-v", "error", "-select_streams", "a:0", "-show_entries", "stream=index", "-of", "csv=p=0"]
        found = subprocess.run([*probe, path], capture_output=True, timeout=30)
        if not found.stdout.strip():
            continue
        decode = ["ffmpeg", "-v", "error", "-nostdin", "-i", path, "-map", "0:a:0", "-frames:a", "1", "-f", "null", "-"]
        done = subprocess.run(decode, capture_output=True, timeout=30)
        if done.returncode == 0 and not done.stderr:
            kept.append(path.name)
    return kept


def judged(paths: list[Path], probe: str, cache: Path | None) -> tuple[list[str], int]:
    from omnirl.data.media import Judge

    with Judge(probe=probe, cache=cache) as judge:  # type: ignore[arg-type]
        asked = [(path, judge.ask("soundtrack", path)) for path in paths]
        return [path.name for path, answer in asked if not answer.result().reason], judge.probed


def child(way: str, folder: Path, cache: Path) -> None:
    """Run one way and print what it kept."""
    paths = sorted(folder.glob("clip*.mp4"))
    if way == WAYS[0]:
        kept, probed = sequential(paths), len(paths)
    else:
        kept, probed = judged(paths, "ffmpeg" if way == WAYS[1] else "auto", cache if way in WAYS[2:] else None)
    sys.stdout.write(json.dumps({"kept": kept, "probed": probed}))


class Result(NamedTuple):
    wall_s: float
    cpu_s: float
    kept: list[str]
    probed: int


def measure(way: str, folder: Path, cache: Path) -> Result:
    """Run one way in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    words = [sys.executable, __file__, "--child", way, str(folder), str(cache)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - start
    answer = json.loads(done.stdout)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Result(wall, cpu, answer["kept"], answer["probed"])


def main(clips: int, rounds: int) -> int:
    with tempfile.TemporaryDirectory() as name:
        folders = {one: Path(name, one) for one in ("all", "usable", "none")}
        for folder in folders.values():
            folder.mkdir()
        kinds = make_clips(folders["all"], clips)
        usable = sorted(one for one, kind in kinds.items() if kind == "soundtrack")
        for one in usable:
            (folders["usable"] / one).hardlink_to(folders["all"] / one)
        found: dict[tuple[str, str], list[Result]] = {(one, way): [] for one in folders for way in WAYS}
        for number in range(rounds):
            for (one, way), results in found.items():
                results.append(measure(way, folders[one], Path(name, f"{one}{number}.jsonl")))
    say = sys.stdout.write
    say(f"{clips} clips, {len(usable)} of them usable, {rounds} rounds; CPU of the whole process tree, medians\n")
    ratios = {}
    for one, count in (("all", clips), ("usable", len(usable))):
        heads = f"{'wall s':>9}{'CPU s':>9}{'ratio':>8}{'ms/clip*':>10}{'ratio*':>8}{'looked at':>11}{'kept':>6}"
        say(f"\n{one + ' clips':20}{heads}\n")
        for way in WAYS:
            results, start = found[one, way], statistics.median(result.cpu_s for result in found["none", way])
            base = found[one, "sequential"]
            wall_s, cpu_s = (
                statistics.median(getattr(result, key) for result in results) for key in ("wall_s", "cpu_s")
            )
            ratio = statistics.median(a.cpu_s / b.cpu_s for a, b in zip(base, results, strict=True))
            each, base_each = cpu_s - start, statistics.median(result.cpu_s for result in base)
            ratios[one, way] = base_each / max(each, 0.001)
            last = results[-1]
            say(f"{way:20}{wall_s:9.2f}{cpu_s:9.2f}{ratio:8.1f}{1000 * each / count:10.2f}{ratios[one, way]:8.1f}")
            say(f"{last.probed:11}{len(last.kept):6}\n")
    agree = all(result.kept == usable for way in WAYS[1:] for result in found["all", way])
    # A cut file still has a first frame, which is all that the plain use looks for.
    plain = sorted(one for one, kind in kinds.items() if kind in ("soundtrack", "cut"))
    warm = all(result.probed == 0 for result in found["all", "judge, warm cache"])
    say("\n* less what the way costs without clips\n")
    say(f"every judge keeps exactly the usable clips: {'yes' if agree else 'NO'}\n")
    same = found["all", "sequential"][0].kept == plain
    say(f"the sequential way keeps those and the cut ones: {'yes' if same else 'NO'}\n")
    return 0 if agree and warm and ratios["usable", "judge, cold"] >= BAR else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
    else:
        words = [int(word) for word in sys.argv[1:]]
        sys.exit(main(*words, *(100, 1)[len(words) :]))
