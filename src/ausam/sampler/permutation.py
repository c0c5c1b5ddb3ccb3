"""A shuffled order that is computed on demand, any range at a time, and never stored as a table."""

from __future__ import annotations

import numpy as np
import torch
from torch import Generator, Tensor

from ausam.common.tensors import CPU

# Pairs of rounds. With four (eight rounds of random functions), no test can tell a large order from chance. A small
# order has small halves, which a round mixes only a little, but more rounds cost nothing there.
PAIRS = 4
PAIRS_OF_SMALL = 24
SMALL = 1 << 16

# Positions computed at a time: small enough for them and their intermediate results to fit into a processor's cache.
CHUNK = 1 << 13


class Permutation:
    """A random order of ``0 .. n - 1``: a Feistel network over the position, with cycle walking.

    A position is split into its low bits ``l`` and the rest ``r < m``. Each pair of rounds changes one half by a random
    function of the other. This is invertible, so no two positions collide:

        l <- l xor f(r),    r <- (r + g(l)) mod m

    A result of ``n`` or more is fed back in until it is smaller. ``f`` and ``g`` are tables of about ``sqrt(n)``
    random numbers. Luby, Rackoff: How to construct pseudorandom permutations from pseudorandom functions, 1988; Black,
    Rogaway: Ciphers with arbitrary finite domains, 2002.

    >>> import torch
    >>> order = Permutation(5, torch.Generator().manual_seed(0))
    >>> sorted(order(0, 5).tolist())
    [0, 1, 2, 3, 4]
    >>> order(2, 4).tolist() == order(0, 5)[2:4].tolist()
    True

    Arguments:
        n: length of the order, >= 1.
        rng: determines the order.

    Cost: about 10 nanoseconds per position, and ``16 sqrt(n)`` numbers.
    """

    def __init__(self, n: int, rng: Generator) -> None:
        pairs = PAIRS if n > SMALL else PAIRS_OF_SMALL
        self._n = n
        self._bits = (n - 1).bit_length() // 2
        self._low = 1 << self._bits
        self._high = -(-n // self._low)
        # For some n the rounds alone reach only the even permutations; an odd rotation reaches the others.
        self._rotation = int(torch.randint(n, (), generator=rng, device=CPU))
        self._f = torch.randint(self._low, (pairs, self._high), generator=rng, device=CPU).numpy()
        self._g = torch.randint(self._high, (pairs, self._low), generator=rng, device=CPU).numpy()

    def __len__(self) -> int:
        return self._n

    def __call__(self, start: int, stop: int) -> Tensor:
        """The elements at the positions from ``start`` up to ``stop``."""
        return self.at(np.arange(start, stop))

    def at(self, position: np.ndarray) -> Tensor:
        """The elements at these positions. Overwrites ``position``."""
        element = position
        element += self._rotation
        element -= (element >= self._n) * self._n
        for a in range(0, len(element), CHUNK):
            element[a : a + CHUNK] = self._rounds(element[a : a + CHUNK])
        outside = np.flatnonzero(element >= self._n)
        while len(outside):
            element[outside] = self._rounds(element[outside])
            outside = outside[element[outside] >= self._n]
        return torch.from_numpy(element)

    def _rounds(self, position: np.ndarray) -> np.ndarray:
        # In place and in numpy, which takes half as long as torch.
        low, high = position & (self._low - 1), position >> self._bits
        less = np.empty_like(high)
        for f, g in zip(self._f, self._g, strict=True):
            low ^= f.take(high)
            high += g.take(low)
            # The remainder: read as unsigned, a negative number is larger than any other.
            np.subtract(high, self._high, out=less)
            np.minimum(high.view(np.uint64), less.view(np.uint64), out=high.view(np.uint64))
        high <<= self._bits
        high |= low
        return high
