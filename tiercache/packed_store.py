"""Storage of a quantised tier."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tiercache.quantize import Format
from tiercache.store import Geometry, Layout, TierStore, payload_layout


class PackedStore(TierStore):
    """Quantised slots, keys (after RoPE) and values, in the given formats.

    Where keys share their ranges over a window, the slots are whole windows: windows move as a whole and slots are
    sorted by position. With a `ledger` a token that brings its codes along is not quantised again.
    """

    packed = True

    def __init__(
        self,
        geometry: Geometry,
        fields: Mapping[str, torch.dtype],
        device: torch.device,
        formats: Mapping[str, Format],
        ledger: bool = False,
    ) -> None:
        self.formats = formats
        self.keeps = ledger
        super().__init__(geometry, fields, device)

    def _content_layout(self) -> Layout:
        return payload_layout(self.formats)

    def _unpack(self, planes: Mapping[str, Tensor], side: str) -> Tensor:
        return self.formats[side].unpack(planes[f"{side}_codes"], planes[f"{side}_grid"], self.geometry.dtype)

    def codes(self, layer: int, side: str) -> tuple[Tensor, Tensor]:
        """Codes and grid of one layer's keys (`k`) or values (`v`), views [rows, kv_heads, used, ...]."""
        rows, used = self.rows, self.used()
        codes, grid = (self.planes[f"{side}_{part}"][layer, :rows, :, :used] for part in ("codes", "grid"))
        return codes, grid

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        rows, used = self.rows, self.used()
        view = {name: self.planes[name][layer, :rows, :, :used] for name in self._content_layout()}
        return self._unpack(view, "k"), self._unpack(view, "v")

    def take(self, rows: Sequence[int], index: Tensor) -> dict[str, Tensor]:
        tokens = super().take(rows, index)
        full = {side: self._unpack(tokens, side) for side in ("k", "v")}
        if self.keeps:
            return {**tokens, **full, "kept": torch.ones_like(tokens["pos"], dtype=torch.bool)}
        return {**full, **{name: tokens[name] for name in self._metadata_layout()}}

    def admit(self, tokens: dict[str, Tensor]) -> dict[str, Tensor]:
        native = {name: tokens[name] for name in self._metadata_layout()}
        for side in ("k", "v"):
            fresh = self.formats[side].pack(tokens[side])
            native.update({f"{side}_{part}": plane for part, plane in fresh.items()})
        if self.keeps:
            known = tokens["kept"].unsqueeze(-1)
            native.update({n: torch.where(known, tokens[n], native[n]) for n in self._content_layout()})
        return super().admit(native)
