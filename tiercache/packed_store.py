"""Storage of a quantised tier."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from tiercache.quantize import Format
from tiercache.store import Geometry, Layout, TierStore, payload_layout


class PackedStore(TierStore):
    """Quantised slots, keys (after RoPE) and values, in the given formats.

    Where keys share their ranges over a window, the slots are whole windows, each sorted by position, and windows move
    as a whole. With a `ledger` a token that brings its codes along is not quantised again.
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

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        rows, used = self.rows, self.used()
        view = {name: self.planes[name][layer, :rows, :, :used] for name in self._content_layout()}
        return self._unpack(view, "k"), self._unpack(view, "v")

    def read(self, rows: Sequence[int], names: Iterable[str]) -> dict[str, Tensor]:
        names = list(names)
        whole = [name for name in names if name in ("k", "v")]
        payload = [name for name in self._content_layout() if name[0] in whole]
        planes = super().read(rows, [*payload, *(name for name in names if name not in whole)])
        return {name: self._unpack(planes, name) if name in whole else planes[name] for name in names}

    def take(self, slots: Tensor) -> dict[str, Tensor]:
        tokens = super().take(slots)
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
