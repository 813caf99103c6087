"""Layers over GPUs: known numbers of known models, and what holds for every division."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.blocks import Blocks, Weights, deal, gpus_needed, weights_of
from tiercache.errors import ResourceError
from tiercache.shapes import KNOWN, ModelShape

GIB = 2**30


def known(name: str) -> Weights:
    found = weights_of(KNOWN[f"deepseek-ai/DeepSeek-R1-Distill-{name}"])
    assert found is not None
    return found


def test_weights_by_hand() -> None:
    """32B: two tables of 152,064 x 5,120 numbers; what is left of 65,527,752,704 bytes is in 64 layers."""
    large = known("Qwen-32B")
    assert large == Weights(64, (65_527_752_704 - 3_114_270_720) // 64, 3_114_270_720)
    assert large.layer == 975_210_656
    tied = ModelShape(30, 9, 3, 64, 576, 49_152, 269_030_016, tied=True)
    assert weights_of(tied, "float32") == Weights(30, (538_060_032 - 113_246_208 + 29) // 30, 113_246_208)
    assert weights_of(ModelShape(30, 9, 3, 64, 576, 49_152)) is None


def test_32b_over_two_cards_of_80_gib() -> None:
    """One would do for a short cache; with two the second takes all layers and the first is free for the cache."""
    large = known("Qwen-32B")
    assert gpus_needed(large, 8 * GIB, 80 * GIB) == 1
    assert gpus_needed(large, 16 * GIB, 80 * GIB) == 2, "65.5 GB and 17.2 GB are more than 77.3 GB"
    found = deal(large, 2, 80 * GIB)
    assert found.sizes == (0, 64)
    assert found.bytes(large) == (3_114_270_720, 62_413_481_984)


def test_32b_over_cards_of_24_gib() -> None:
    """23 layers a card, 23,192,823,398 bytes of each usable."""
    large = known("Qwen-32B")
    assert gpus_needed(large, 2 * GIB, 24 * GIB) == 3, "18 layers at home, 23 on each of two others"
    assert gpus_needed(large, 4 * GIB, 24 * GIB) == 4
    assert deal(large, 3, 24 * GIB).sizes == (18, 23, 23)
    assert deal(large, 4, 24 * GIB).sizes == (0, 22, 21, 21)
    assert max(deal(large, 3, 24 * GIB).bytes(large)) < 0.9 * 24 * GIB


def test_70b_over_two_cards_of_80_gib() -> None:
    """45 layers of 1,711,309,005 bytes fit the second, 35 and both tables, 64,098,507,783, stay beside the cache."""
    huge = known("Llama-70B")
    found = deal(huge, 2, 80 * GIB)
    assert found.sizes == (35, 45)
    assert found.bytes(huge)[0] == 35 * huge.layer + 4_202_692_608
    assert gpus_needed(huge, 12 * GIB, 80 * GIB) == 2
    assert gpus_needed(huge, 14 * GIB, 80 * GIB) == 3


def test_what_no_number_of_gpus_holds() -> None:
    with pytest.raises(ResourceError, match=r"a GPU of 1 GiB, 90% usable, .* a layer takes 975,210,656 bytes"):
        gpus_needed(known("Qwen-32B"), 0, GIB)
    with pytest.raises(ResourceError, match="all keys and values, together"):
        gpus_needed(known("Qwen-7B"), 80 * GIB, 80 * GIB)


@given(st.integers(1, 100), st.integers(1, 1000), st.integers(0, 3000), st.integers(0, 4000), st.integers(1000, 9000))
def test_the_fewest_gpus_hold_all(layers: int, layer: int, rest: int, cache: int, gpu: int) -> None:
    weights = Weights(layers, layer, rest)
    try:
        gpus = gpus_needed(weights, cache, gpu, 1.0)
    except ResourceError:
        assert layer > gpu or rest + cache > gpu
        return

    def fits(count: int) -> bool:
        home, *others = deal(weights, count, gpu, 1.0).bytes(weights)
        return home + cache <= gpu and all(each <= gpu for each in others)

    assert fits(gpus)
    assert gpus == 1 or not fits(gpus - 1)


@given(st.integers(1, 100), st.integers(1, 9), st.integers(1, 2000))
def test_blocks_are_contiguous_and_even(layers: int, gpus: int, layer: int) -> None:
    found = deal(Weights(layers, layer, 0), gpus, 9000, 1.0)
    assert sum(found.sizes) == layers
    assert list(found.places()) == sorted(found.places())
    assert len(found.places()) == layers
    assert gpus == 1 or max(found.sizes[1:]) - min(found.sizes[1:]) <= 1
    assert Blocks((2, 3, 1)).starts() == (0, 2, 5)
