"""Which roles the heads of a model play, held against an untrained model and against shuffled texts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from headwise.config.checks import require_size, require_text, shown
from headwise.errors import ConfigError, ModelError, TextError
from headwise.inspection.capture.checked_inputs import require_module
from headwise.inspection.capture.readers import open_reader, open_stacks, require_stack
from headwise.inspection.capture.reading import Progress, shorten
from headwise.inspection.roles.results import HeadRole, HeadRoles, RoleExample, RoleProbe
from headwise.inspection.roles.rule import UNIFORM, Score, holds, threshold
from headwise.inspection.roles.sources import Source, prose, random_repeats, read_vocabulary
from headwise.inspection.roles.sums import RoleSums
from headwise.inspection.roles.texts import OFFSETS, RoleTexts, offset_name
from headwise.inspection.roles.untrained import untrained_twin
from headwise.inspection.texts.default_text import default_texts
from headwise.inspection.texts.pairs import is_encoder_decoder
from headwise.inspection.texts.windows import model_length, require_texts
from headwise.integrations.layer_weights import LayerWeights
from headwise.integrations.transformers_attention import is_transformers_model

FIXED_OFFSET = "fixed offset"
ROLES = (
    "previous token",
    "next token",
    FIXED_OFFSET,
    "self",
    "first token",
    "separator",
    "punctuation",
    "same token",
    "induction",
    "duplicate",
    UNIFORM,
    "rare word",
)
ON_REPEATS = ("induction", "duplicate")
IN_ANY_ORDER = ("self", UNIFORM)  # shuffling the tokens says nothing about them
NUM_REPEATS = 4
UNKNOWN = Score(None, 0)
NOT_PROBED = "Roles are probed in the stack {} alone, not in {}."


def probe_roles(
    model: nn.Module,
    vocabulary: Any,
    texts: Sequence[str] | None = None,
    *,
    stack: str | None = None,
    window: int | None = None,
    num_repeats: int = NUM_REPEATS,
    num_random: int | None = None,
    first_id: int | None = None,
    untrained: nn.Module | None = None,
    seed: int = 0,
    batch_size: int = 8,
    progress: Progress | None = None,
) -> RoleProbe:
    """Score every head of a model on every role, with both nulls and the evidence.

    A head's score is the mean weight that its queries put on the role's keys, over the queries that have such a key and
    two keys or more to choose from:

    - previous token, next token, self: the token before, after, the query's own;
    - fixed offset: the token 2 to 8 before or after, the best of these offsets, named;
    - first token: of the text (the attention sink); separator: all tokens that separate texts; punctuation: all tokens
      of nothing else; rare word: the two tokens of the text that are least frequent in all that is read. The queries
      that are such tokens themselves are left out;
    - same token: all earlier occurrences of the same id;
    - induction, duplicate: on `[first token + random tokens + the same again]`, from a token of the second copy to the
      one after its first occurrence, and to its first occurrence;
    - uniform: `sum_j min(w_j, 1 / n)` over the n keys that a query sees.

    The model stays on its own fast path, weights come in blocks of queries, and only sums are kept. It reads the texts
    twice, once shuffled, and an untrained twin, which takes as much memory as the model, reads them once.

    Args:
        model: a Hugging Face model, or a module that is called with token ids and holds `nn.MultiheadAttention`s or
            headwise's `MultiHeadAttention`s.
        vocabulary: its tokenizer; or the number of its token ids, then all roles are read on the random texts.
        texts: what to read. Default: English prose that ships with Python.
        stack: name of the stack of self-attention, as of `open_reader`. Of an encoder-decoder it must be the encoder's;
            its decoder reads one start token meanwhile.
        window: tokens that the texts are read in at once, special tokens included. Default: 128, or what the model
            reads at most.
        num_repeats: random texts (default 4).
        num_random: random tokens of one copy. Default: 40, or as many as the model has room and the vocabulary has
            tokens for.
        first_id: token that random texts begin with. Default: the tokenizer's or the config's bos token, else the
            tokenizer's cls token, else none.
        untrained: the untrained model to compare with. Default: it is built from the model's config; where that cannot
            be, a note says so, and roles are held against shuffled texts alone.
        seed: of random texts, shuffles and random weights.
        batch_size: texts of a forward pass; memory depends on it, results do not.
        progress: called with the forward passes that are done and how many there are.

    Raises:
        ModelError: the model reads no token ids, or its attention cannot be read.
        TextError: there is no text or no tokenizer to read it with, or random texts or windows do not fit.
        ConfigError: a number is none, or too small.

    Source: Clark et al. 2019, "What Does BERT Look At?", section 3; Voita et al. 2019, "Analyzing Multi-Head
    Self-Attention" (positional heads, rare words); Xiao et al. 2023, "Efficient Streaming Language Models with
    Attention Sinks", section 3; Olsson et al. 2022, "In-context Learning and Induction Heads". The nulls and the rule:
    `role_rule`.
    """
    require_module(model)
    if untrained is not None:
        require_module(untrained)
    sizes = {"batch_size": batch_size, "num_repeats": num_repeats, "num_random": num_random, "window": window}
    for name, size in sizes.items():
        if size is not None:
            require_size(name, size)
    require_size("seed", seed, minimum=0)
    if first_id is not None:
        require_size("first_id", first_id, minimum=0)
    if stack is not None:
        require_text("stack", stack)
    if texts is not None:
        require_texts(texts)
    if progress is not None and not callable(progress):
        raise ConfigError(f"progress must be a function of two numbers; got {shown(progress)}")
    known = read_vocabulary(model, vocabulary, first_id)
    if known.tokenizer is None and texts is not None:
        raise TextError(f"texts are read with a tokenizer; got {len(texts)} texts and a vocabulary of {vocabulary} ids")
    is_transformers = is_transformers_model(model)
    max_length = model_length(model, known.tokenizer) if is_transformers else None
    repeats, num_random = random_repeats(
        known,
        num_texts=num_repeats,
        num_random=num_random,
        max_length=max_length,
        seed=seed,
        batch_size=batch_size,
    )
    notes = []
    written = None
    if known.tokenizer is not None:
        texts = default_texts() if texts is None else texts
        written = prose(
            known,
            texts,
            window=window,
            max_length=max_length,
            batch_size=batch_size if is_transformers else 1,  # other modules are not told of padding
        )
        if written.num_texts > len(texts):
            notes.append(
                f"Read in {written.num_texts} windows of up to {written.longest} tokens: roles depend on the window."
            )
    if untrained is None:
        try:
            untrained = untrained_twin(model, seed=seed)
        except ModelError as error:
            notes.append(f"Roles are held against shuffled texts alone, and self against nothing: {error}.")
    sources = [repeats] if written is None else [repeats, written]
    _require_encoder(model, stack, repeats.batches[0])
    num_passes = sum(len(source.batches) for source in sources) * (2 if untrained is None else 3)
    probe = _Probe(model, untrained, stack, seed, num_passes, progress)
    on_repeats, *on_prose = [probe.read(source) for source in sources]
    readings = {name: on_repeats if name in ON_REPEATS or not on_prose else on_prose[0] for name in ROLES}
    untrained_nulls = {name: _untrained_null(name, readings[name]) for name in ROLES}
    return RoleProbe(
        heads=tuple(
            HeadRoles(
                layer=layer,
                head=head,
                roles=tuple(_role(name, readings[name], layer, head, untrained_nulls[name]) for name in ROLES),
            )
            for layer, sums in enumerate(on_repeats.trained)
            for head in range(sums.num_heads)
        ),
        num_windows=0 if written is None else written.num_texts,
        num_tokens=0 if written is None else written.num_tokens,
        window=0 if written is None else written.longest,
        num_repeats=num_repeats,
        num_random=num_random,
        seed=seed,
        notes=(*notes, *probe.reader_notes),
        stack=probe.probed_stack,
    )


@dataclass(frozen=True, eq=False)
class _Reading:
    """One source, and the sums of every layer on it.

    Args:
        source: what was read.
        trained: sums of the model.
        shuffled: of the model on the same texts, shuffled.
        untrained: of the untrained model; empty where there is none.
    """

    source: Source
    trained: list[RoleSums]
    shuffled: list[RoleSums]
    untrained: list[RoleSums]


@dataclass(eq=False)
class _Probe:
    """Reads sources with a model and its untrained twin, and counts the forward passes."""

    model: nn.Module
    untrained: nn.Module | None
    stack: str | None
    seed: int
    num_passes: int
    progress: Progress | None
    num_done: int = 0
    reader_notes: tuple[str, ...] = ()
    probed_stack: str | None = None

    def read(self, source: Source) -> _Reading:
        generator = torch.Generator().manual_seed(self.seed)
        shuffled = [batch.shuffled(generator) for batch in source.batches]
        return _Reading(
            source,
            self._sum_up(self.model, source.batches),
            self._sum_up(self.model, shuffled),
            [] if self.untrained is None else self._sum_up(self.untrained, source.batches),
        )

    def _sum_up(self, model: nn.Module, batches: Sequence[RoleTexts]) -> list[RoleSums]:
        """Read every batch once and return the sums of every layer."""
        reader = open_reader(model, _inputs(model, batches[0]), stack=self.stack)
        layers: list[RoleSums] = []
        num_read = 0
        for batch in batches:

            def observe(number: int, layer: LayerWeights, batch: RoleTexts = batch, num_read: int = num_read) -> None:
                if number == len(layers):
                    layers.append(RoleSums(layer.shape[1]))
                layers[number].add(layer, batch, first_text=num_read)

            reader.read(_inputs(model, batch), observe)
            num_read += len(batch.ids)
            self.num_done += 1
            if self.progress is not None:
                self.progress(self.num_done, self.num_passes)
        if model is self.model:
            self.reader_notes = tuple(reader.notes)
            others = [each.name for each in reader.reader.stacks if each != reader.stack]
            if others:
                self.probed_stack = reader.stack.name
                self.reader_notes += (NOT_PROBED.format(self.probed_stack, " and ".join(others)),)
        return layers


def _inputs(model: nn.Module, batch: RoleTexts) -> dict[str, Any] | tuple[Any, ...]:
    device = next(model.parameters()).device
    ids = batch.read_ids().to(device)
    if not is_transformers_model(model):
        return (ids,)
    inputs = {"input_ids": ids, "attention_mask": batch.real.long().to(device)}
    if is_encoder_decoder(model):
        start = getattr(model.config, "decoder_start_token_id", None) or 0
        inputs["decoder_input_ids"] = torch.full((len(ids), 1), start, device=device)
    return inputs


def _require_encoder(model: nn.Module, stack: str | None, batch: RoleTexts) -> None:
    """Refuse a stack of an encoder-decoder that does not read the texts: the decoder reads one token meanwhile."""
    if stack is None or not is_encoder_decoder(model):
        return
    reader = open_stacks(model, _inputs(model, batch))
    encoder = next(each.name for each in reader.stacks if not each.is_cross)
    if require_stack(reader, stack, type(model).__name__).name != encoder:
        raise ModelError(
            f"roles of an encoder-decoder are probed in the stack that reads the text, {encoder!r}; got {stack!r}"
        )


def _role(name: str, reading: _Reading, layer: int, head: int, untrained_null: Score) -> HeadRole:
    """Put a head's score on a role beside its nulls, with what is behind it."""
    part, score = _best(name, reading.trained[layer], head)
    shuffled_null = UNKNOWN if name in IN_ANY_ORDER else _best(name, reading.shuffled[layer], head)[1]
    total = reading.trained[layer].roles[part]
    example, largest_share = None, None
    if name != UNIFORM and score.num_queries:
        largest_share = int(total.num_largest[head]) / score.num_queries
        text, query, key = total.best_pair[head].tolist()
        example = RoleExample(
            text=text,
            query_index=query,
            key_index=key,
            query=shorten(reading.source.label(text, query)),
            key=shorten(reading.source.label(text, key)),
            weight=total.best_weight[head].item(),
        )
    return HeadRole(
        name=name,
        offset=OFFSETS[_parts(name).index(part)] if name == FIXED_OFFSET and score.num_queries else None,
        score=score.mean,
        untrained_null=untrained_null.mean,
        shuffled_null=shuffled_null.mean,
        threshold=threshold(name),
        holds=holds(name, score, (untrained_null, shuffled_null)),
        num_queries=score.num_queries,
        largest_share=largest_share,
        example=example,
    )


def _untrained_null(name: str, reading: _Reading) -> Score:
    """Return the highest score of any untrained head."""
    heads = ((sums, head) for sums in reading.untrained for head in range(sums.num_heads))
    return _highest(_best(name, sums, head)[1] for sums, head in heads)


def _best(name: str, sums: RoleSums, head: int) -> tuple[str, Score]:
    """Return the part of a role that a head scores highest on, and that score; the first where none has a score."""
    scores = {part: sums.roles[part].score(head) for part in _parts(name)}
    highest = _highest(scores.values())
    return next((part for part, score in scores.items() if score == highest), _parts(name)[0]), highest


def _parts(name: str) -> tuple[str, ...]:
    """Return the names under which a role is summed up: one for each fixed offset."""
    return tuple(offset_name(offset) for offset in OFFSETS) if name == FIXED_OFFSET else (name,)


def _highest(scores: Iterable[Score]) -> Score:
    known = (score for score in scores if score.mean is not None)
    return max(known, key=lambda score: score.mean or 0.0, default=UNKNOWN)
