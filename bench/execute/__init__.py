"""From wanted runs to stored results: blocks, workers, and what each of them takes."""

from typing import Literal

Engine = Literal["auto", "lanes", "lightning"]
"""What makes runs: many as one program, one after the other, or what is faster."""
