"""Run by test_kernels.py with TRITON_INTERPRET=1: the Triton kernel against the formula. A last row may see nothing."""

import math

import torch
from attention_reference import close, plain

from tiercache.kernels import on_cuda

for dim, group, used, parts in ((32, 2, 150, None), (64, 4, 200, 3), (80, 7, 130, 2), (16, 3, 5, None)):
    g = torch.Generator().manual_seed(dim)
    query, keys, values = (torch.randn(3, 2, n, dim, generator=g) for n in (group, used, used))
    extents = [used, used // 2, 3]
    bias = torch.where(torch.rand(3, 2, 1, used, generator=g) < 0.3, -math.inf, 0.0)
    bias[2] = -math.inf
    for hidden in (None, bias):
        places = query, keys, values, torch.tensor(extents), hidden, 0.2
        found = on_cuda.decode_attention(*places, lse=True, weights=True, parts=parts)
        close(found, plain(query, keys, values, extents, hidden, 0.2))
        print("equal")

    # Heads of different lengths in one line of slots.
    lengths = torch.randint(1, used + 1, (3, 2), generator=g)
    starts = (lengths.flatten().cumsum(0) - lengths.flatten()).view(3, 2) + 1
    lines = [torch.zeros(1 + int(lengths.sum()), dim) for _ in "kv"]
    bias = torch.full((3, 2, 1, used), -math.inf)
    for row in range(3):
        for head in range(2):
            n, start = int(lengths[row, head]), int(starts[row, head])
            bias[row, head, :, :n] = 0
            for line, plane in zip(lines, (keys, values), strict=True):
                line[start : start + n] = plane[row, head, :n]
    longest = int(lengths.max())
    places = query, *lines, lengths, None, 0.2
    found = on_cuda.decode_attention(*places, lse=True, weights=True, parts=parts, starts=starts, longest=longest)
    first = keys[:, :, :longest], values[:, :, :longest]
    close(found, plain(query, *first, [longest] * 3, bias[..., :longest], 0.2))
    print("equal")
