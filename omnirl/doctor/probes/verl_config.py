"""Version and keys of the installed verl, read from its files."""

from __future__ import annotations

import json
import sys

from omnirl.errors import OmniError
from omnirl.recipe.verl_keys import installed

if __name__ == "__main__":
    try:
        version, keys = installed()
    except (OmniError, OSError) as error:
        sys.stdout.write("\n" + json.dumps({"fault": str(error)}) + "\n")
    else:
        sys.stdout.write("\n" + json.dumps({"version": version, "keys": keys}) + "\n")
