"""What loading one clip costs: 44 s of 640 x 480 with sound become 32 frames and a 16 kHz soundtrack. Run on demand:

    python tests/benchmarks/media.py [ROUNDS]

Beside it stand an `ffmpeg` process that does the same in one command, and `qwen_omni_utils` where it can be imported.
All run in turn; what counts is the median of the round-by-round ratios, of seconds and of CPU seconds (user + system,
children included). On a busy machine only the latter mean much.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS, FPS, WIDTH, HEIGHT = 44, 30, 640, 480
NEXTQA = {"fps": 1.0, "min_pixels": 25_088, "max_pixels": 100_352, "max_frames": 32}


def make_clip(path: Path) -> Path:
    """A moving pattern with a tone, H.264 with a key frame every 250 frames."""
    import numpy as np

    from tests.engine.clips import tone, write_clip

    random = np.random.default_rng(0)
    field = random.integers(0, 255, (HEIGHT // 16, WIDTH // 16, 3), np.uint8).repeat(16, 0).repeat(16, 1)
    pictures = [np.roll(field, (3 * at, 5 * at), (0, 1)) for at in range(SECONDS * FPS)]
    options = {"g": "250", "bf": "2", "preset": "veryfast"}
    return write_clip(path, pictures, rate=FPS, options=options, sound=tone(SECONDS))


def loaders(clip: Path) -> dict[str, Callable[[], object]]:
    from omnirl.engine import media

    item = {"video": str(clip), **NEXTQA}
    pixels, metadata = media.video(item)
    frames = "+".join(f"eq(n,{index})" for index in metadata["frames_indices"])
    found: dict[str, Callable[[], object]] = {"omnirl": lambda: (media.video(item), media.soundtrack(clip))}
    if shutil.which("ffmpeg"):
        height, width = pixels.shape[-2:]
        scale = f"select='{frames}',scale={width}:{height}:flags=bicubic"
        command = [
            *("ffmpeg", "-v", "error", "-y", "-i", str(clip)),
            *("-map", "0:v:0", "-vf", scale, "-vsync", "0", "-f", "rawvideo", "-pix_fmt", "rgb24", f"{clip}.rgb"),
            *("-map", "0:a:0", "-ac", "1", "-ar", "16000", "-f", "f32le", f"{clip}.f32"),
        ]
        found["ffmpeg"] = lambda: subprocess.run(command, check=True)
        found["ffmpeg, 1 thread"] = lambda: subprocess.run(
            [*command[:4], "-threads", "1", "-filter_threads", "1", *command[4:]], check=True
        )
    try:
        from qwen_omni_utils import process_mm_info
    except ImportError as error:
        sys.stderr.write(f"without qwen_omni_utils: {error}\n")
    else:
        chat = [{"role": "user", "content": [{"type": "video", **item}]}]
        found["qwen_omni_utils"] = lambda: process_mm_info(chat, use_audio_in_video=True, image_patch_size=16)
    return found


def cost(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds and CPU seconds."""

    def spent() -> float:
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    before, started = spent(), time.perf_counter()
    work()
    return time.perf_counter() - started, spent() - before


def main(rounds: int) -> int:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as folder:
        found = loaders(make_clip(Path(folder, "clip.mp4")))
        for work in found.values():
            work()
        costs: dict[str, list[tuple[float, float]]] = {name: [] for name in found}
        for _ in range(rounds):
            for name, work in found.items():
                costs[name].append(cost(work))
    for name, measured in costs.items():
        seconds, cpu = (statistics.median(values) for values in zip(*measured, strict=True))
        wall_ratio, cpu_ratio = (
            statistics.median(own[at] / other[at] for own, other in zip(costs["omnirl"], measured, strict=True))
            for at in (0, 1)
        )
        spent = f"{name:17}  {seconds:.3f} s  {cpu:.3f} CPU s"
        sys.stdout.write(f"{spent}  omnirl is {wall_ratio:.2f} x that, {cpu_ratio:.2f} x in CPU s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 7))
