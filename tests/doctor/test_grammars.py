"""ANTLR's runtime, and the keys of verl."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from omnirl.doctor import grammars, verl_config
from omnirl.doctor.check import Target
from omnirl.doctor.probes.grammars import PARTS
from omnirl.recipe import verl_keys
from tests.doctor.site import install


def target(**environ: str) -> Target:
    return Target(None, Path("runs"), {**os.environ, **environ})


def test_what_is_installed_works() -> None:
    (found,) = grammars.check(target())
    assert found.verdict == "ok"
    assert "math-verify 0.9" in found.found
    assert "antlr4-python3-runtime" in found.found


def test_a_runtime_that_fits_none_of_them(tmp_path: Path) -> None:
    install(tmp_path, "antlr4-python3-runtime", "4.13.2", module="antlr4")
    for module, text in (("__init__", "from .atn import *\n"), ("atn", "class ATNDeserializer: ...\n")):
        (tmp_path / "antlr4" / f"{module}.py").write_text(text)
    (found,) = grammars.check(target(PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])))
    assert found.verdict == "fail"
    assert "omegaconf" in found.found
    assert "math-verify" in found.found
    assert found.hint == "pip install 'antlr4-python3-runtime==4.9.3'"


def test_the_clash_is_named_with_its_versions(tmp_path: Path) -> None:
    install(tmp_path, "antlr4-python3-runtime", "4.13.2")
    install(tmp_path, "omegaconf", "2.3.1")
    answers = {"math-verify": "", "omegaconf": "Exception: Could not deserialize ATN with version 3 (expected 4)."}
    found = grammars.judge(answers, [str(tmp_path)])
    assert found.found.startswith("omegaconf 2.3.1: Exception: Could not deserialize ATN")
    assert found.found.endswith("(with antlr4-python3-runtime 4.13.2)")


@pytest.mark.parametrize("part", PARTS)
def test_a_trial_takes_the_grammar(part: str) -> None:
    """Without ANTLR each trial fails: none answers by a path that does not parse."""
    pytest.importorskip("hydra")
    code = f"""
import sys
sys.modules["antlr4"] = None
from omnirl.doctor.probes.grammars import PARTS
PARTS[{part!r}]()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "antlr4" in done.stderr


def test_the_keys_of_the_installed_verl() -> None:
    if find_spec("verl") is None:
        pytest.skip("needs verl")
    (found,) = verl_config.check(target())
    assert found.verdict == "ok"
    assert found.found == f"{len(verl_keys.types())} keys of verl {verl_keys.version()}"


def test_another_verl() -> None:
    keys = dict(verl_keys.types())
    assert verl_config.compare("0.9.2", keys).verdict == "ok"
    assert verl_config.compare("0.9.2", {**keys, "new.key": "int"}).verdict == "warn"
    gone = verl_config.compare("0.10.0", {k: v for k, v in keys.items() if k != "trainer.nnodes"}, ["trainer.nnodes"])
    assert gone.verdict == "fail"
    assert gone.found == "verl 0.10.0 lacks trainer.nnodes; the recipe sets trainer.nnodes"
    changed = verl_config.compare("0.10.0", {**keys, "trainer.nnodes": "str"})
    assert changed.found == "verl 0.10.0 differs: trainer.nnodes is str, not int"
    assert changed.hint == f"pip install 'verl[verl-core]=={verl_keys.version()}'"
