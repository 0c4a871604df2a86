from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from omnirl.errors import InvalidInput
from omnirl.plan import forms, overrides
from omnirl.plan.forms import Launch
from omnirl.recipe import registry
from omnirl.recipe.search import shipped

PAIRS = [(pair.task, pair.hardware) for pair in registry.pairs([shipped()])]
BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="needs bash")
HARD = [
    "plain",
    "it's",
    'say "hi"',
    "$HOME `id` $(id) ${x:-y}",
    "a\\b\\",
    "two\nlines",
    "tab\tbell\x07del\x7f",
    "*?[a]{b,c}~",
    "!event",
    "-n",
    "ünïcode 音",
    "byte\udcff",
    "c1\x9b",
    "",
]


def rendered(task="gsm8k", hardware="h800x4", **kwargs):
    resolved = registry.resolve(task, hardware, **kwargs)
    return resolved, overrides.render(resolved)


def run(script: str, folder: Path, *arguments: str, **env: str) -> dict:
    """What the script calls its python with: its arguments, working folder and environment."""
    python = folder / "python"
    python.write_text(
        f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]))\n"
    )
    python.chmod(0o755)
    (folder / "run.sh").write_text(script + "\n", encoding="utf-8")
    plain = {"PATH": f"{folder}:/usr/bin:/bin", "PYTHONUTF8": "1", **env}
    done = subprocess.run(
        [str(BASH), "run.sh", *arguments], cwd=folder, env=plain, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    words, at, environ = json.loads(done.stdout)
    return {"words": words, "folder": at, "env": environ}


def test_hydras_words_are_those_of_a_run():
    _, found = rendered()
    assert forms.hydra(found).splitlines() == overrides.hydra_words(found.overrides)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_yaml_reads_back(pair):
    _, found = rendered(*pair)
    text = forms.yaml(found)
    nested = yaml.safe_load(text)
    assert flat(nested) == found.overrides
    assert OmegaConf.to_container(OmegaConf.create(text)) == nested


def flat(values, prefix=""):
    result = {}
    for key, value in values.items():
        result |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {prefix + key: value}
    return result


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(min_codepoint=32, exclude_categories=("Cs", "Cc", "Zl", "Zp", "Cn", "Co")), max_size=20)
)
KEYS = st.sampled_from(["a", "y", "on", "Null", "n", "x-y", "9", "true", "é"])
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))


@given(st.dictionaries(KEYS, TREES, min_size=1, max_size=3))
@settings(max_examples=200)
def test_any_value_survives_yaml(values):
    assert yaml.safe_load(forms.yaml(overrides.Rendered(values, {}, {}))) == values


def test_a_value_with_keys_below_it_is_refused():
    for values in ({"a": 1, "a.b": 2}, {"a.b": 2, "a": 1}):
        with pytest.raises(InvalidInput, match="verl's key `a"):
            forms.yaml(overrides.Rendered(values, {}, {}))


@needs_bash
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_the_script_calls_train_in_the_folder(pair, tmp_path):
    resolved, found = rendered(*pair)
    called = run(forms.shell(resolved, found, Launch(tmp_path)), tmp_path, ASCEND_HOME_PATH="/cann")
    assert called["words"] == ["-m", "omnirl", "train", pair[0], "--on", pair[1]]
    assert called["folder"] == str(tmp_path.resolve())
    assert found.env.items() <= called["env"].items()
    assert ("RAY_ADDRESS" in called["env"]) == (resolved.recipe.hardware.nodes > 1)


@needs_bash
def test_quoting_is_exact(tmp_path):
    resolved, _ = rendered()
    env = {f"NAME{number}": text for number, text in enumerate(HARD) if "\0" not in text}
    folder = tmp_path / "it's $a\n\tfolder"
    folder.mkdir()
    options = [("--set", text) for text in HARD]
    launch = Launch(folder, options, HARD, {"MODEL_PATH": "a b'c"}, "/x y:/z")
    script = forms.shell(resolved, overrides.Rendered({}, {}, env), launch)
    assert not any(ord(character) < 32 and character != "\n" for character in script)
    called = run(script, tmp_path, *HARD[:4])
    given = [word for text in HARD for word in ("--set", text)]
    assert called["words"][6:] == [*given, *HARD[:4], "--", *HARD]
    assert called["folder"] == str(folder.resolve())
    assert env.items() <= called["env"].items()
    assert (called["env"]["MODEL_PATH"], called["env"]["OMNIRL_RECIPES"]) == ("a b'c", "/x y:/z")


@needs_bash
def test_variables_are_defaults_as_in_the_documented_launchers(tmp_path):
    resolved, found = rendered()
    script = forms.shell(resolved, found, Launch(tmp_path, variables={"TRAIN_BATCH_SIZE": "64", "ROLLOUT_N": "4"}))
    called = run(script, tmp_path, TRAIN_BATCH_SIZE="32", ROLLOUT_N="")
    assert (called["env"]["TRAIN_BATCH_SIZE"], called["env"]["ROLLOUT_N"]) == ("32", "4")


@needs_bash
def test_npu_scripts_are_sourced_unless_their_environment_is_there(tmp_path):
    resolved, found = rendered("nextqa", "ascend910c-x16")
    script = forms.shell(resolved, found, Launch(tmp_path))
    (tmp_path / "run.sh").write_text(script)
    if not Path("/usr/local/Ascend").exists():
        done = subprocess.run(
            [str(BASH), "run.sh"], cwd=tmp_path, env={"PATH": os.defpath}, capture_output=True, text=True
        )
        assert done.returncode == 4
        assert done.stderr == "/usr/local/Ascend/ascend-toolkit/set_env.sh is missing: is CANN installed?\n"
    # The same lines with scripts that are there, and that use variables which are not set.
    for name in ("ascend-toolkit", "nnal/atb"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "set_env.sh").write_text(f'export SEEN="$SEEN {name}$NOT_SET"\n')
    called = run(script.replace("/usr/local/Ascend", str(tmp_path)), tmp_path)
    assert called["env"]["SEEN"] == " ascend-toolkit nnal/atb"


def test_gpu_scripts_source_nothing(tmp_path):
    assert "source " not in forms.shell(*rendered(), Launch(tmp_path))
