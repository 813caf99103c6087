"""What a model, a policy and a length come to on one GPU: bytes of each tier, bus traffic, rows, a bound on speed.

Tokens are counted by `footprint`, the code that the cache itself obeys, so they are exact for a given length. Bytes are
those of the ledger: keys and values, without positions, slot fields and unused slots. `FORMULAS` are what is computed
here, written out. No torch here.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

from tiercache.errors import RequestError
from tiercache.footprint import Footprint, footprint
from tiercache.gpus import GPU_USABLE, Machine
from tiercache.policy import Policy
from tiercache.requests import check_whole
from tiercache.shapes import ELEMENT_BYTES, ModelShape
from tiercache.strict import nearest
from tiercache.thoughts import KINDS

T1Read = Literal["merge", "stream", "mirror"]
T1_READS: tuple[T1Read, ...] = get_args(T1Read)
MOST_CONTEXT = 2**20
LSE_BYTES = 4  # a partial output's log-sum-exp is float32

# In Python's notation; `token`, `t0`, … are those of the lines above.
FORMULAS: dict[str, str] = {
    "token": "2 * layers * kv_heads * head_dim * element",
    "token_by_query_heads": "2 * layers * q_heads * head_dim * element",
    "t0": "t0_tokens * token",
    "t1": "t1_tokens * token",
    "t2": "t2_tokens / window * packed_window",
    "staging": "2 / layers * t1 if stream else 0",
    "copy": "t1 if mirror else 0",
    "row": "t0 + t2 + staging + copy",
    "most_rows": "1 + (0.9 * gpu - weights - max(prompt_tokens * token, row)) // row",
    "to_host": "(layers * q_heads * head_dim * element if merge else token if mirror else 0) if t1 else 0",
    "to_device": "t1 if stream else layers * q_heads * (head_dim * element + 4) if merge and t1 else 0",
    "device_reads": "t0 + t2 + (0 if merge else t1)",
    "host_reads": "t1 if merge else 0",
    "weight_reads": "weights - vocab * hidden * element",
    "hbm_s": "(weight_reads + rows * device_reads) / hbm",
    "bus_s": "rows * max(to_host, to_device) / bus",
    "host_s": "rows * host_reads / host",
    "tokens_per_s": "rows / max(hbm_s, bus_s, host_s)",
}


class Bus(NamedTuple):
    """Bytes that cross between host and device in one decode step of one sequence, its event's moves left out."""

    to_host: int
    to_device: int


class Reads(NamedTuple):
    """Bytes of one sequence in a decode step: read on the device, read on the host, over the bus one way."""

    device: float
    host: float
    bus: float


class Projection(NamedTuple):
    """A cache size printed by 2605.09490 (draft), which counts query heads."""

    model: str
    tokens: int
    rows: int
    printed: str

    def corrected(self, shape: ModelShape) -> int:
        return self.rows * self.tokens * shape.kv_bytes_per_token()


PROJECTIONS = (
    Projection("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 2000, 1, "about 800 MB"),
    Projection("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", 4096, 8, "about 80 GB"),
)


@dataclass(frozen=True)
class Capacity:
    """One policy at one length on one machine. Bytes: T0 and T2 at the moment when both together are fullest, T1 at its
    own peak.

    tokens   of one sequence that holds `context` tokens, the prompt's included. The last token that is generated ends
             the sequence and is never written: 1,000 prompt tokens and 1,001 new ones hold 2,000.
    t1_read  how attention reads T1. `mirror`, which the engine doesn't offer, is a policy that also keeps a copy of T1
             on the device: only tokens that move cross, each to the host once, so one a step in the long run.
    thoughts the kinds of thoughts in a chain that is known, where how much they keep depends on it.
    """

    shape: ModelShape
    policy: Policy
    context: int
    tokens: Footprint
    dtype: str
    t1_read: T1Read
    machine: Machine
    thoughts: tuple[int, ...] = ()

    @cached_property
    def token(self) -> int:
        """One token's keys and values, by KV heads."""
        return self.shape.kv_bytes_per_token(self.dtype)

    @property
    def token_by_query_heads(self) -> int:
        """What one gets for it by counting query heads, as is often done."""
        return self.token * self.shape.group

    @property
    def t0(self) -> int:
        return self.tokens.fullest[0] * self.token

    @property
    def t1(self) -> int:
        """On the host, in full precision."""
        return self.shape.host_bytes(self.tokens, self.dtype)

    @cached_property
    def t2(self) -> int:
        """On the device, quantised, scales and zero points included."""
        return self.shape.sizes(self.policy, self.dtype).packed_bytes(*self.tokens.fullest[1:])

    @property
    def depends_on_data(self) -> bool:
        """Whether bytes here are an upper bound: how much a thought keeps depends on what kind it turns out to be."""
        return self.policy.placement.segment is not None and not self.thoughts

    @property
    def staging(self) -> int:
        """Two layers of T1, brought up one ahead of the layer that reads them."""
        return 2 * self.t1 // self.shape.layers if self.t1_read == "stream" else 0

    @property
    def copy(self) -> int:
        return self.t1 if self.t1_read == "mirror" else 0

    @property
    def row(self) -> int:
        """Most device bytes of a sequence while it is decoded."""
        return self.t0 + self.t2 + self.staging + self.copy

    @property
    def prompt(self) -> int:
        """Device bytes of the whole prompt, before the policy first acts."""
        return self.tokens.prompt * self.token

    @property
    def full(self) -> int:
        return self.context * self.token

    @property
    def weights(self) -> int | None:
        return self.shape.weights_as(self.dtype)

    @property
    def usable(self) -> int:
        """Bytes of the GPU for weights, keys and values."""
        return int(self.machine.gpu_bytes * GPU_USABLE)

    @property
    def most_rows(self) -> int | None:
        """Sequences of this length that fit beside the weights while one more prompt comes in; None: weights unknown.

        The rule of the engine's admission, with staging buffers.
        """
        if self.weights is None:
            return None
        room = self.usable - self.weights - max(self.prompt, self.row)
        return 1 + room // self.row if room >= 0 else 0

    def bus(self, t1_read: T1Read) -> Bus:
        """What one sequence sends over the bus in a decode step, if T1 were read this way; nothing without T1."""
        if not self.t1:
            return Bus(0, 0)
        if t1_read == "stream":
            return Bus(0, self.t1)
        if t1_read == "mirror":
            return Bus(self.token, 0)
        vectors = self.shape.layers * self.shape.q_heads
        one = self.shape.head_dim * ELEMENT_BYTES[self.shape.resolve(self.dtype)]
        return Bus(vectors * one, vectors * (one + LSE_BYTES))

    @property
    def device_reads(self) -> int:
        """Keys and values that a decode step of one sequence reads on the device, at its fullest.

        Where pages are read (2406.10774), those, their bounds (a token's bytes for each), and dense layers whole.
        """
        return int(self._device_reads(self.tokens.fullest[0], self.t1, self.t2))

    @property
    def host_reads(self) -> int:
        return self.t1 if self.t1_read == "merge" else 0

    def held(self) -> Reads:
        """The same and the bus, in the mean over all decode steps, as they are held after each step's event."""
        size = self.shape.sizes(self.policy, self.dtype)
        t1, t2 = self.tokens.ddr_mean * self.token, self.tokens.packed_mean * size.packed / size.window
        # Of the steps at least this share finds something in T1.
        share = self.tokens.ddr_mean / self.tokens.ddr_peak if self.t1 else 0.0
        host = t1 if self.t1_read == "merge" else 0.0
        return Reads(self._device_reads(self.tokens.hbm_mean, t1, t2), host, share * max(self.bus(self.t1_read)))

    def _device_reads(self, hbm: float, t1: float, t2: float) -> float:
        """With so many tokens in T0, and bytes of T1 and T2."""
        reading, far = self.policy.reading, 0.0 if self.t1_read == "merge" else t1
        if reading.pages is None or reading.read_budget is None:
            return hbm * self.token + t2 + far
        budget = reading.read_budget.tokens or int((reading.read_budget.ratio or 0) * hbm)
        chosen = min(hbm, max(3, budget // reading.pages) * reading.pages) + -(-hbm // reading.pages)
        dense = min(reading.dense_layers, self.shape.layers)
        return (dense * hbm + (self.shape.layers - dense) * chosen) * self.token / self.shape.layers

    @property
    def weight_reads(self) -> int | None:
        """What a step reads of the model: of the embeddings a row. Where they are the output projection too, less."""
        if self.weights is None:
            return None
        table = self.shape.vocab * self.shape.hidden * ELEMENT_BYTES[self.shape.resolve(self.dtype)]
        return max(0, self.weights - table)

    def step_seconds(self, rows: int) -> dict[str, float] | None:
        """Least time that a decode step of so many rows takes on each channel; they overlap, so the longest decides."""
        if self.weight_reads is None:
            return None
        machine, bus = self.machine, self.bus(self.t1_read)
        return {
            "HBM": (self.weight_reads + rows * self.device_reads) / (machine.hbm_gbps * 1e9),
            "bus": rows * max(bus) / (machine.bus_gbps * 1e9),
            "host memory": rows * self.host_reads / (machine.host_gbps * 1e9),
        }

    def tokens_per_s(self, rows: int) -> float | None:
        """No more than this: arithmetic, launches and latencies aren't counted. Whether the rows fit isn't asked."""
        seconds = self.step_seconds(rows)
        return rows / max(seconds.values()) if seconds else None

    def bound_by(self, rows: int) -> str | None:
        """The channel that decides."""
        seconds = self.step_seconds(rows)
        return max(seconds, key=seconds.__getitem__) if seconds else None


def capacity(
    shape: ModelShape,
    policy: Policy,
    context: int,
    *,
    prompt: int = 512,
    dtype: str = "auto",
    t1_read: str | None = None,
    machine: Machine | None = None,
    thoughts: tuple[int, ...] = (),
) -> Capacity:
    """The capacity at a length; `t1_read` defaults to the policy's own. `thoughts`: see `footprint`.

    Raises:
        RequestError: a length or a name is impossible.
        PolicyError: the policy's storage doesn't suit the model's head size.
    """
    check_whole("context", context, 1)
    check_whole("prompt", prompt, 1)
    if prompt > context or context > MOST_CONTEXT:
        raise RequestError(f"context: is from prompt ({prompt:,}) to {MOST_CONTEXT:,} tokens (got {context:,}).")
    for name, value, allowed in (("dtype", dtype, ("auto", *ELEMENT_BYTES)), ("t1_read", t1_read, (None, *T1_READS))):
        if value not in allowed:
            names = [each for each in allowed if each]
            raise RequestError(f"{name}: is one of {', '.join(names)} (got {value!r}).{nearest(str(value), names)}")
    strange = [kind for kind in thoughts if kind not in KINDS]
    if strange:
        raise RequestError(f"thoughts: kinds are {', '.join(map(str, KINDS))} (got {strange[0]!r}).")
    tokens = footprint(policy, prompt, context - prompt, shape.sizes(policy, dtype), thoughts)
    read = next(each for each in T1_READS if each == (t1_read or policy.storage.t1_read))
    return Capacity(shape, policy, context, tokens, dtype, read, machine or Machine(), thoughts)


def formulas() -> str:
    """What is computed here, a line each."""
    return "\n".join(f"{name:<20} = {formula}" for name, formula in FORMULAS.items())
