from __future__ import annotations

import json
import tomllib

import pytest

from omnirl.recipe import model
from omnirl.recipe.schema import FILE, schema, text
from omnirl.recipe.search import shipped


def test_the_shipped_file_is_current():
    assert (shipped() / FILE).read_text(encoding="utf-8") == text(), "run: python -m omnirl.recipe.schema"


def test_every_setting_is_in_it():
    found = set()

    def walk(table, prefix=""):
        for name, value in table["properties"].items():
            options = [value, *value.get("anyOf", [])]
            inner = [schema()["$defs"][option["$ref"].rpartition("/")[2]] for option in options if "$ref" in option]
            if not inner:
                found.add(prefix + name)
            for part in inner:
                walk(part, f"{prefix}{name}.")

    walk(schema())
    assert found - {"extends", "on"} == set(model.settings())


def test_no_key_is_required():
    assert '"required"' not in json.dumps(schema())


@pytest.mark.parametrize("path", sorted(shipped().rglob("*.toml")), ids=lambda path: path.stem)
def test_it_accepts_every_shipped_file(path):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(tomllib.loads(path.read_text(encoding="utf-8")), schema())


@pytest.mark.parametrize(
    "recipe",
    [
        {"train": {"step": 3}},
        {"train": {"steps": "3"}},
        {"on": {"cpu": {"train": {"step": 3}}}},
        {"tune": {"kind": "loar"}},
        {"data": {"train": []}},
    ],
)
def test_it_refuses(recipe):
    jsonschema = pytest.importorskip("jsonschema")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(recipe, schema())


def test_settings_describe_themselves():
    bare = {"kind", "summary"}
    for name, table in schema()["$defs"].items():
        for key, value in table["properties"].items():
            is_table = "$ref" in json.dumps(value)
            assert value.get("description") or key in bare or is_table, f"{name}.{key}"
