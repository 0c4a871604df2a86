"""Whether this machine is fit for a recipe: what was found, what is wanted, and what mends it.

Nothing here imports torch, verl or Ray; what has to is asked in a process of its own, with a deadline.
"""

from __future__ import annotations
