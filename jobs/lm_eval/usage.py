"""What a run held and how fast it was, beside its scores in the harness's results file."""

from dataclasses import dataclass
from typing import Any

from tiercache.ledger import SequenceBytes
from tiercache.requests import RunStats


@dataclass
class Usage:
    """Sums over all sequences of a model; `summary` gives their means."""

    sequences: int = 0
    output_tokens: int = 0
    device_bytes: float = 0.0
    host_bytes: float = 0.0
    full_bytes: float = 0.0
    evicted_tokens: int = 0
    decode_tokens: int = 0
    decode_s: float = 0.0

    def add(self, ledger: SequenceBytes, output_tokens: int) -> None:
        self.sequences += 1
        self.output_tokens += output_tokens
        self.device_bytes += ledger.hbm_bytes_mean + ledger.packed_bytes_mean
        self.host_bytes += ledger.ddr_bytes_mean
        self.full_bytes += ledger.full_bytes_mean
        self.evicted_tokens += ledger.evicted_tokens

    def add_run(self, stats: RunStats | None) -> None:
        if stats is not None:
            self.decode_tokens += stats.decode_tokens
            self.decode_s += stats.decode_s

    def summary(self) -> dict[str, Any]:
        """Bytes are logical and of one sequence, mean over its decode steps; tokens/s over all rows of a batch."""
        n = self.sequences
        if n == 0:
            return {"sequences": 0}
        return {
            "sequences": n,
            "output_tokens_mean": self.output_tokens / n,
            "device_kv_bytes_mean": self.device_bytes / n,
            "host_kv_bytes_mean": self.host_bytes / n,
            "full_kv_bytes_mean": self.full_bytes / n,
            "evicted_tokens_mean": self.evicted_tokens / n,
            "decode_tokens_per_s": self.decode_tokens / self.decode_s if self.decode_s else None,
        }
