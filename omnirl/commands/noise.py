"""`omnirl noise`: a checkpoint with noise in its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omnirl import console
from omnirl.commands.recipe import AsJson
from omnirl.errors import EnvironmentLacks

EXAMPLES = """Examples: omnirl noise models/teacher --ratio 0.25 --output models/student;
omnirl noise models/teacher --ratio 0.1 --seed 1 --towers --embeddings --output models/student --json"""


def noise(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A checkpoint folder with safetensors files.")],
    *,
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="The new folder.")],
    ratio: Annotated[
        float,
        typer.Option("--ratio", metavar="X", help="Size of the noise against each tensor's root mean square."),
    ] = 0.25,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of the noise.")] = 0,
    towers: Annotated[
        bool, typer.Option("--towers/--no-towers", help="Noise in the audio and the vision tower too.")
    ] = False,
    embeddings: Annotated[
        bool, typer.Option("--embeddings/--no-embeddings", help="Noise in token embeddings and output head too.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Copy a checkpoint with noise in its weights: a student that can learn back from the original.

    Each weight of the language model gets Gaussian noise with a standard deviation of --ratio times the root mean
    square of its tensor. What was done is in the new folder's noise.json.
    """
    from importlib.util import find_spec

    if find_spec("numpy") is None:
        raise EnvironmentLacks("noise needs `numpy`", hint="pip install numpy")
    from omnirl.noise import folder, shards

    tensors = sum(len(shard.tensors) for shard in shards.find(model))
    with console.progress("adding noise", tensors) as advance:
        report = folder.add_noise(
            model, output, ratio=ratio, seed=seed, towers=towers, embeddings=embeddings, advance=advance
        )
    if json:
        console.emit_json(report.as_dict())
        return
    rows = [
        (name, folder.PARTS[name], part.tensors, part.weights, f"{part.measured:.4g}" if part.noised else "as it was")
        for name, part in report.parts.items()
        if part.tensors
    ]
    console.table("Noise", ("part", "what", "tensors", "weights", "noise"), rows)
    for name in report.left_out:
        console.note(f"`{name}` is left out")
