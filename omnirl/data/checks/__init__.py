"""Whether files can be trained on: looked through at leisure (`check`) or in a second before a run (`preflight`)."""
