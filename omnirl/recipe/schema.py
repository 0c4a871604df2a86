"""The JSON schema of recipe files, for editors. `python -m omnirl.recipe.schema` writes the shipped copy anew."""

from __future__ import annotations

import json
from typing import Any

from omnirl.recipe.model import Recipe
from omnirl.recipe.search import shipped

FILE = "recipe.schema.json"


def schema() -> dict[str, Any]:
    """The schema of one recipe file.

    A file is a layer: it need not set everything, may extend others, and has tables for hardware. What is required is
    checked when layers are merged.
    """
    resolved = Recipe.model_json_schema()
    definitions = {name: _partial(table) for name, table in resolved.pop("$defs").items()}
    extends = {
        "type": "array",
        "items": {"type": "string"},
        "description": "Recipe files that this one builds on, weakest first.",
    }
    layer = _partial(resolved)
    layer["properties"] = {"extends": extends, **layer["properties"]}
    on = {
        "type": "object",
        "additionalProperties": {"$ref": "#/$defs/OnHardware"},
        "description": "Settings for one hardware; the table makes the pair of this task and that hardware.",
    }
    definitions["OnHardware"] = {**layer, "title": "OnHardware", "description": "Settings for one hardware."}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **layer,
        "title": "omnirl recipe",
        "description": "One layer of an omnirl recipe.",
        "properties": {**layer["properties"], "on": on},
        "$defs": dict(sorted(definitions.items())),
    }


def _partial(table: dict[str, Any]) -> dict[str, Any]:
    """A table none of whose keys is required and whose defaults, being another layer's, are not shown as its own."""
    found = {name: value for name, value in table.items() if name not in ("required", "default")}
    found["properties"] = {name: _setting(value) for name, value in table.get("properties", {}).items()}
    return found


def _setting(value: dict[str, Any]) -> dict[str, Any]:
    found = {name: inner for name, inner in value.items() if name not in ("discriminator", "oneOf", "title", "default")}
    options = [option for option in value.get("oneOf", value.get("anyOf", [])) if option != {"type": "null"}]
    if len(options) == 1:
        found.pop("anyOf", None)
        return {**options[0], **found}
    if options:
        found["anyOf"] = options
    if (
        found.get("type") == "array"
        and found.get("items", {}).get("type") == "string"
        and found["items"].get("minLength")
    ):
        # A list of files may be one file.
        items = {name: found.pop(name) for name in ("type", "items", "minItems") if name in found}
        found["anyOf"] = [items, {"type": "string", "minLength": 1}]
    return found


def text() -> str:
    """The schema as the shipped file holds it."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    (shipped() / FILE).write_text(text(), encoding="utf-8")
