"""Seeds that are derived, not drawn: the same parts give the same seed on every machine and Python."""

from hashlib import blake2b


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2^63) that depends on all the parts and their order."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest()) >> 1
