"""How much `omnirl --help` costs beside a bare Typer application of the same shape. Run on demand:

    python tests/benchmarks/startup.py [ROUNDS]

The bare application has the same groups, commands and number of parameters, and imports nothing but typer. Both run in
turn; what counts is the median of the round-by-round ratios of CPU seconds (user + system). The bar is 1.3.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BAR = 1.3


def bare_source(group: Any, *, rich: bool) -> str:
    """The source of a Typer application with the shape of `group`."""
    lines = ["import typer"]

    def add(command: Any, name: str, parent: str) -> None:
        options = [p for p in command.params if p.param_type_name == "option"]
        signature = ", ".join(f"o{i}: str = typer.Option('', help='An option.')" for i, _ in enumerate(options))
        if hasattr(command, "commands"):
            variable = f"app_{name}".replace("-", "_")
            mode = "" if rich else ", rich_markup_mode=None"
            lines.append(f"{variable} = typer.Typer(help='A group.'{mode})")
            lines.append(f"@{variable}.callback()\ndef _({signature}) -> None: pass")
            for inner_name, inner in command.commands.items():
                add(inner, inner_name, variable)
            if parent:
                lines.append(f"{parent}.add_typer({variable}, name={name!r})")
        else:
            lines.append(f"@{parent}.command({name!r})\ndef _({signature}) -> None:\n    'A command.'")

    add(group, "root", "")
    return "\n".join([*lines, "app_root()", ""])


def cpu_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(rounds: int) -> int:
    sys.path.insert(0, str(ROOT))
    import typer

    from omnirl import cli

    group = typer.main.get_command(cli.app)
    with tempfile.TemporaryDirectory() as folder:
        for rich in (True, False):
            Path(folder, f"bare_{rich}.py").write_text(bare_source(group, rich=rich))
        commands = {
            "omnirl --help": [sys.executable, "-m", "omnirl", "--help"],
            "bare, rich help": [sys.executable, f"{folder}/bare_True.py", "--help"],
            "bare, plain help": [sys.executable, f"{folder}/bare_False.py", "--help"],
            "omnirl --version": [sys.executable, "-m", "omnirl", "--version"],
        }
        for command in commands.values():
            cpu_seconds(command)  # byte code and page cache
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                seconds[name].append(cpu_seconds(command))
    ours = seconds["omnirl --help"]
    worst = 0.0
    for name, found in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(ours, found, strict=True))
        sys.stdout.write(f"{name:18}  {statistics.median(found):.3f} CPU s  omnirl --help is {ratio:.2f} x that\n")
        worst = max(worst, ratio) if name.startswith("bare") else worst
    return 0 if worst <= BAR else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 15))
