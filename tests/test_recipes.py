"""Every shipped recipe: resolves, keeps the rules, renders, and to exactly the values that are documented."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

from omnirl.plan import hydra_words, plan
from omnirl.recipe import registry, rules
from omnirl.recipe.search import names, shipped

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).parent / "data" / "overrides"
PAIRS = [(pair.task, pair.hardware) for pair in registry.pairs([shipped()])]
FILES = sorted(shipped().rglob("*.toml"))
FACTS = Path(os.environ.get("OMNIRL_SHARED", ROOT.parent / "shared")) / "facts" / "recipes.toml"
DOCUMENTED = [("gsm8k", "h800x4", "gspo/gsm8k/gpu")]


@pytest.fixture(autouse=True)
def _only_shipped(monkeypatch):
    monkeypatch.delenv("OMNIRL_RECIPES", raising=False)
    monkeypatch.chdir(ROOT)


def test_the_pairs():
    assert {("gsm8k", "cpu"), ("gsm8k", "h800x4"), ("toy", "cpu")} <= set(PAIRS)


@pytest.mark.parametrize("algo", [None, *names([shipped()], "algo")])
@pytest.mark.parametrize("tune", [None, *names([shipped()], "tune")])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_every_pair_with_every_fragment(pair, algo, tune):
    resolved = registry.resolve(*pair, algo=algo, tune=tune)
    assert rules.check(resolved) == ()
    document = plan(resolved)
    assert document["problems"] == []
    assert algo in (None, document["algo"])
    assert tune in (None, document["tune"])


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_what_verl_is_told_is_what_was_reviewed(pair):
    """Golden text: a change of a recipe shows as a readable diff. `OMNIRL_UPDATE=1 pytest` writes it anew."""
    document = plan(registry.resolve(*pair))
    told = {**document["settings"], **{f"env {name}": value for name, value in document["env"].items()}}
    words = [*hydra_words(document["overrides"]), "", *(f"{name} = {value!r}" for name, value in told.items())]
    text = "\n".join(words).replace(str(ROOT), "HERE") + "\n"
    path = GOLDEN / f"{'-'.join(pair)}.txt"
    if os.environ.get("OMNIRL_UPDATE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()


@pytest.mark.skipif(not FACTS.is_file(), reason="the documented settings are not beside the checkout (OMNIRL_SHARED)")
@pytest.mark.parametrize(("task", "hardware", "name"), DOCUMENTED)
def test_documented_settings_are_reproduced(task, hardware, name):
    facts = tomllib.loads(FACTS.read_text(encoding="utf-8"))
    document = plan(registry.resolve(task, hardware))
    wanted = {key: value for key, value in _with_includes(facts, name).items() if "." in key}
    assert len(wanted) > 40
    for key, value in wanted.items():
        home = document["overrides"] if key in document["overrides"] else document["settings"]
        assert home.get(key, "absent") == value, key


def _with_includes(facts, name):
    table = facts
    for part in [name] if name in facts else name.split("."):
        table = table[part]
    found = {}
    for included in table.get("includes", []):
        found |= _with_includes(facts, included)
    return found | {key: value for key, value in table.items() if key != "includes"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(shipped())))
def test_files_are_plain(path):
    """One value a line: `file:line` stays exact and diffs stay small."""
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    assert first.startswith("#:schema ")
    assert (path.parent / first.removeprefix("#:schema ")).resolve() == (shipped() / "recipe.schema.json").resolve()
    for line in lines:
        assert not re.search(r"=\s*\{", line), line
        assert '"""' not in line
        assert "'''" not in line


def test_no_value_is_written_twice_in_fragments():
    """A value that two fragments share belongs in a third that both extend."""
    seen = {}
    for path in FILES:
        if path.parent == shipped():
            continue
        for key, value in _leaves(tomllib.loads(path.read_text(encoding="utf-8"))):
            if isinstance(value, str | list) and key[0] not in ("extends", "hardware") and key[-1] != "kind":
                assert (key, str(value)) not in seen, (path, seen.get((key, str(value))))
                seen[key, str(value)] = path


def _leaves(values, prefix=()):
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*prefix, name))
        else:
            yield (*prefix, name), value


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_evidence_is_not_claimed_without_proof(pair):
    recipe = registry.resolve(*pair).recipe
    assert recipe.evidence == "planned" or recipe.proof
    assert recipe.hardware.device == "cpu" or recipe.evidence == "planned"
