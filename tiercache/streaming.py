"""Between host and device while a step runs: a tier's layers come up one ahead of the layer that reads them.

Copies run on a stream of their own, ordered by events, out of pinned memory; two buffers take turns. Where the device
is the CPU there is no stream, and the same copies are made on the spot.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tiercache.store import TierStore


@dataclass
class TransferClock:
    """How long copies took, by the device's own events. They are read once they have passed, never waited for."""

    seconds: float = 0.0
    _pending: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)

    def add(self, start: torch.cuda.Event, end: torch.cuda.Event) -> None:
        self._pending.append((start, end))

    def collect(self) -> float:
        """Seconds so far of all copies that have ended."""
        ended = [pair for pair in self._pending if pair[1].query()]  # type: ignore[no-untyped-call]
        self.seconds += sum(start.elapsed_time(end) for start, end in ended) / 1e3
        self._pending = [pair for pair in self._pending if pair not in ended]
        return self.seconds


class Courier:
    """Brings one host tier's keys and values to the device, for one decode step, layers in order."""

    def __init__(self, store: TierStore, device: torch.device, clock: TransferClock) -> None:
        self.store, self.device, self.clock = store, device, clock
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        # Whole layers, unused slots included: only what lies in one piece is copied without the processor's help.
        shape = (2, 2, *store.planes["k"].shape[1:])
        self._buffers = torch.empty(shape, dtype=store.geometry.dtype, device=device)
        self._arrived: list[torch.cuda.Event | None] = [None, None]
        self._sent = -1

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values [rows, kv_heads, used, d] of a layer; valid until the next but one is asked for."""
        while self._sent < min(layer + 1, self.store.geometry.layers - 1):
            self._send(self._sent + 1)
        arrived = self._arrived[layer % 2]
        if arrived is not None:
            torch.cuda.current_stream(self.device).wait_event(arrived)
        rows, used = self.store.rows, self.store.used()
        keys, values = self._buffers[layer % 2, :, :rows, :, :used]
        return keys, values

    def _send(self, layer: int) -> None:
        self._sent = layer
        if self._stream is None:
            self._copy(layer)
            return
        # Whatever has read this buffer was launched before.
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            self._copy(layer)
            end.record()
        self._arrived[layer % 2] = end
        self.clock.add(start, end)

    def _copy(self, layer: int) -> None:
        for side, buffer in zip("kv", self._buffers[layer % 2], strict=True):
            buffer.copy_(self.store.planes[side][layer], non_blocking=True)


class Sent:
    """A tensor on its way to the host: `here` waits for it alone, not for what was launched after it."""

    def __init__(self, x: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._x = x
        if x.device.type == "cuda":
            self._x = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
            self._x.copy_(x, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def here(self) -> Tensor:
        if self._event is not None:
            self._event.synchronize()
        return self._x
