"""Train what a run folder describes: `python -m omnirl.engine.main RUN`.

Reads `recipe.json`, `overrides.txt` and `run.json`; writes into the attempt's folder and `checkpoints/`. A failure that
can be explained is left in `error.json` of the attempt.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

from omnirl.data import store
from omnirl.engine import checkpoint, environment
from omnirl.engine.phase import Phase, report
from omnirl.errors import Exit, OmniError
from omnirl.files import write_json
from omnirl.run.processes import die_with_parent

_CORPUS_ROWS = 2000


def main(arguments: list[str]) -> int:
    die_with_parent(os.getppid())
    run = Path(arguments[0]).resolve()
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    recipe = json.loads((run / "recipe.json").read_text(encoding="utf-8"))["values"]
    attempt = run / "attempts" / str(record["attempt"])
    ray_folder = environment.prepare(recipe, attempt)
    try:
        report(Phase.MODEL)
        proof = record.get("proof")
        model = prepare_model(run, recipe, warm_up=not proof)
        if recipe["algo"]["kind"] == "opd":
            from omnirl.engine.distill import tokens

            tokens.require_same(model, checkpoint.folder(recipe["algo"]["teacher"]["path"]))
        report(Phase.RAY)
        train(run, recipe, model, ray_folder, proof=proof)
        report(Phase.DONE)
    except Exception as error:  # noqa: BLE001  the last frame of this process: say why, then fail
        traceback.print_exc()
        write_json(attempt / "error.json", explain(error))
        return Exit.CHILD
    return Exit.OK


def prepare_model(run: Path, recipe: dict[str, Any], *, warm_up: bool = True) -> Path:
    """The checkpoint folder to train from; the tiny one is built in the run folder the first time.

    Args:
        warm_up: teach the tiny one what the recipe says.
    """
    path = recipe["model"]["path"]
    if path != "tiny":
        return checkpoint.folder(path)
    folder = run / "model"
    if (folder / "ready").is_file():
        return folder
    from omnirl.engine import tiny

    settings = recipe["model"]["tiny"]
    train = Path(recipe["data"]["train"][0]).expanduser()
    shutil.rmtree(folder, ignore_errors=True)  # left by an attempt that was stopped while building
    tiny.build(folder, seed=settings["seed"], corpus=_prompts(train))
    if warm_up and settings["warmup_steps"] > 0:
        from omnirl.engine import warmup

        warmup.warm_up(
            folder,
            train,
            steps=settings["warmup_steps"],
            learning_rate=settings["warmup_learning_rate"],
            label_accuracy=settings["warmup_label_accuracy"],
            seed=settings["seed"],
        )
    (folder / "ready").touch()
    return folder


def _prompts(train: Path) -> list[str]:
    """Texts for the tiny tokenizer to cut well: the first training prompts."""
    rows = itertools.islice(store.read_rows(train, ["prompt"]), _CORPUS_ROWS)
    return [message["content"] for row in rows for message in row["prompt"]]


def train(
    run: Path, recipe: dict[str, Any], model: Path, ray_folder: Path, *, proof: dict[str, Any] | None = None
) -> None:
    """Compose verl's configuration and run its trainer to the end.

    Args:
        proof: settings of the sync proof, which is then all that is run.
    """
    import ray
    from omegaconf import OmegaConf, open_dict
    from verl.trainer.main_ppo import run_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    from omnirl.engine.trainer import OmniTaskRunner
    from omnirl.engine.wiring import compose

    config = compose(run, recipe, model, ray_folder)
    if proof:
        with open_dict(config.trainer):
            config.trainer.sync_proof = proof
            config.trainer.only_sync_proof = True
    if environment.cluster():
        with open_dict(config):
            variables = environment.for_nodes(recipe["env"])
            OmegaConf.update(config, "ray_kwargs.ray_init.runtime_env.env_vars", variables, force_add=True)
    validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    try:
        run_ppo(config, task_runner_class=OmniTaskRunner)
    finally:
        ray.shutdown()


def explain(error: BaseException) -> dict[str, object]:
    """What went wrong, in one line, from the innermost exception that Ray carries."""
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        error = getattr(error, "cause", None) or error.__cause__ or error
    lines = [line for line in str(error).splitlines() if line.strip()]
    message = lines[-1].strip() if lines else type(error).__name__
    if not isinstance(error, OmniError):
        message = message if message.startswith(type(error).__name__) else f"{type(error).__name__}: {message}"
    return {"message": message, "hint": getattr(error, "hint", None)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
