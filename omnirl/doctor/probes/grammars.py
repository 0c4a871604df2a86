"""Parse one formula with math-verify, or load one text with OmegaConf or with Hydra: all three use ANTLR's runtime.

A runtime that does not fit one of them fails when that one parses, not when it is imported. What it raises, often a
plain Exception, ends the program, and its last line on stderr is the answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

FORMULA = r"$\frac{1}{2}$"


def math() -> bool:
    """Whether math-verify reads a formula right."""
    from math_verify import parse, verify

    return bool(verify(parse(FORMULA, parsing_timeout=0), parse("$0.5$", parsing_timeout=0), timeout_seconds=0))


def config() -> bool:
    """Whether OmegaConf resolves a call, which takes its grammar; a plain `${name}` would not."""
    from omegaconf import OmegaConf

    loaded = OmegaConf.create({"left": 1, "right": "${oc.select:left,2}"})
    return bool(OmegaConf.to_container(loaded, resolve=True) == {"left": 1, "right": 1})


def hydra() -> bool:
    """Whether Hydra reads an override."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return str(OverridesParser.create().parse_override("a.b=[1,2]").value()) == "[1, 2]"


PARTS: dict[str, Callable[[], bool]] = {"math-verify": math, "omegaconf": config, "hydra-core": hydra}
"""By the package that is tried."""


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps({"right": PARTS[sys.argv[1]]()}) + "\n")
