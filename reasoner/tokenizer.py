"""The tokenizer of the reasoner: 112 words, built here from the grammar and never trained.

Every word but a digit carries its leading space (" x5", " =4", " #### "), so that decoding is a
plain concatenation and a prompt or a chain survives the round trip exactly. White space in the
input is normalised first, which makes trailing blanks and line breaks harmless.
"""

from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from reasoner.grammar import MODULUS, NAMES, QUERIES

PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"
RESERVED = 7  # rounds the vocabulary up to a multiple of 16
MAX_TOKENS = 1024


def vocabulary() -> dict[str, int]:
    """Word -> id; the order is part of the format of the weights."""
    words = [PAD, BOS, EOS, " ;", " ."]
    words += [f" {query}" for query in QUERIES]
    words += [" #### "]
    words += [f" x{i}" for i in range(NAMES)]
    words += [f" ={d}" for d in range(MODULUS)]
    words += [str(d) for d in range(MODULUS)]
    words += [UNK]
    words += [f" +{d}" for d in range(MODULUS)]
    words += [f"<reserved{i}>" for i in range(RESERVED)]
    return {word: i for i, word in enumerate(words)}


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, without a chat template: a prompt goes to the model as it stands."""
    tokenizer = Tokenizer(models.WordLevel(vocabulary(), unk_token=UNK))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Strip(),
            normalizers.Prepend(" "),
        ]
    )
    word = Regex(r" #### | x\d+| =\d| \?[abcd]| [;.]| \+\d|\d")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(word, "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, vocabulary()[BOS])]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        padding_side="left",
        model_max_length=MAX_TOKENS,
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(directory: str | Path) -> None:
    """Write tokenizer.json and tokenizer_config.json into `directory`."""
    build_tokenizer().save_pretrained(str(directory))
