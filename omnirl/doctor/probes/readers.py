"""What PyAV was built with: its version, its FFmpeg, and which of the codecs named on the command line it decodes."""

from __future__ import annotations

import json
import sys


def main(codecs: list[str]) -> None:
    """Write the answer; whatever PyAV raises when it is loaded ends the program and is told by its last line."""
    import av
    from av.codec import Codec

    lacking = []
    for name in codecs:
        try:
            Codec(name, "r")
        except ValueError:  # UnknownCodecError is one
            lacking.append(name)
    library = ".".join(str(number) for number in av.library_versions["libavcodec"])
    sys.stdout.write("\n" + json.dumps({"version": av.__version__, "libavcodec": library, "lacking": lacking}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
