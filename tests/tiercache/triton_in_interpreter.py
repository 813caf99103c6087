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
