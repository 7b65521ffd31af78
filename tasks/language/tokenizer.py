"""Tokenizers of the BERT family: of a pretrained model, or word pieces trained on the task's texts."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from tokenizers import Tokenizer, trainers
from tokenizers.implementations import BertWordPieceTokenizer

from tasks.core.files import DataError, one_line

LEAST_VOCABULARY = 100
"""A tokenizer with fewer tokens is one whose vocabulary was not found."""

_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def load_tokenizer(model: str) -> Tokenizer:
    """The tokenizer of a pretrained model: a local folder, `python:PACKAGE/FOLDER`, or a name on the Hugging Face Hub.

    Its `tokenizer.json` is read directly; other kinds are left to `transformers`.
    """
    patterns = [*_FILES, "config.json", "tokenizer_config.json", "merges.txt"]
    folder = model_folder(model, patterns, has_tokenizer, "its tokenizer")
    if not has_tokenizer(folder):
        raise DataError(f"there is no tokenizer in {folder}: copy the model's tokenizer.json or vocab.txt there")
    try:
        if (folder / "tokenizer.json").is_file():
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        else:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True).backend_tokenizer
    except Exception as error:  # `tokenizers` raises nothing more specific
        why = f"cannot be read ({one_line(error)})"
        raise DataError(f"the tokenizer in {folder} {why}; copy the model's files there again") from None
    if (size := tokenizer.get_vocab_size()) < LEAST_VOCABULARY:
        why = f"has {size} tokens, fewer than {LEAST_VOCABULARY}: its vocabulary is missing"
        raise DataError(f"the tokenizer in {folder} {why}; copy the model's tokenizer.json or vocab.txt there")
    return tokenizer


def named_folder(model: str) -> Path:
    """The folder that a model's name means, which need not exist: `python:PACKAGE/FOLDER` is in that package.

    The package is not imported; so weights in a package have the same name on every machine. It must be installed.
    """
    package, _, inside = model.removeprefix("python:").partition("/")
    if not model.startswith("python:"):
        return Path(model).expanduser()
    spec = find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        why = f"there is no Python package {package!r} here; install it ({package.replace('_', '-')}?)"
        raise DataError(f"missing model {model!r}: {why}, or name another model with --task.model")
    return Path(spec.submodule_search_locations[0]) / inside


def has_tokenizer(folder: Path) -> bool:
    """Whether a model's folder has a tokenizer."""
    return any((folder / name).is_file() for name in _FILES)


def model_folder(model: str, patterns: Sequence[str], is_complete: Callable[[Path], bool], what: str) -> Path:
    """The local folder of a model; from the Hub, these files are fetched once."""
    folder = named_folder(model)
    if folder.is_dir():
        return folder
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, snapshot_download
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.utils import disable_progress_bars

    with suppress(Exception):  # not in the cache, or no name of the Hub
        folder = Path(snapshot_download(model, allow_patterns=[*patterns], local_files_only=True))
        if is_complete(folder):
            return folder
    try:
        # Checked first: without a network the download would retry for a minute.
        get_hf_file_metadata(hf_hub_url(model, "config.json"), timeout=10)
        disable_progress_bars()
        return Path(snapshot_download(model, allow_patterns=[*patterns], local_files_only=False))
    except Exception as error:  # of the network, of the Hub, of the name
        why = f"no such folder, {what} not in the Hub's cache {HF_HUB_CACHE}, and no download ({one_line(error)})"
        todo = "name a folder with --task.model DIR, a cache with HF_HOME, or train a small model: --task.scratch true"
        raise DataError(f"missing model {model!r}: {why}; {todo}") from None


def word_pieces(vocabulary: Mapping[str, int]) -> Tokenizer:
    """BERT's tokenizer in lower case with this vocabulary."""
    return Tokenizer.from_str(BertWordPieceTokenizer(dict(vocabulary), lowercase=True).to_str())


def pad_id_of(tokenizer: Tokenizer) -> int:
    """The id of the padding token."""
    if tokenizer.padding is not None:
        return tokenizer.padding["pad_id"]
    ids = [tokenizer.token_to_id(token) for token in ("[PAD]", "<pad>")]
    return next((i for i in ids if i is not None), 0)  # padding is masked, so any token will do


def train_word_pieces(texts: Sequence[str], size: int) -> Tokenizer:
    """BERT's tokenizer, in lower case, with at most `size` >= 100 tokens of these texts: a function of both alone.

    `tokenizers` numbers characters within words in the order of a hash table, which differs between processes. So they
    are passed in order, as if they were special tokens; only the most frequent characters are kept.
    """
    tokenizer = word_pieces({token: i for i, token in enumerate(_SPECIAL)})
    counts = Counter[str]()
    for text in texts:
        counts.update(tokenizer.normalizer.normalize_str(text))
    frequent = sorted((c for c in counts if not c.isspace()), key=lambda c: (-counts[c], c))
    characters = sorted(frequent[: min(1000, size // 4)])
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=[*_SPECIAL, *(f"##{c}" for c in characters)],
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return word_pieces(tokenizer.get_vocab())
