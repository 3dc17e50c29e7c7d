"""generate and stream: continue texts, token by token, from a language model and its cache."""

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headwise.caches.model import ModelCache
from headwise.config.checks import require_instance, require_size
from headwise.errors import ConfigError, UnsupportedError
from headwise.nn.checks import explain_device, require_ids
from headwise.nn.language_model import LanguageModel
from headwise.nn.lookup import Lookup
from headwise.nn.sampling import Sampling, choose_tokens
from headwise.nn.stopping import Stopping
from headwise.positions.absolute import LearnedPositions
from headwise.positions.checks import described

Step = list[list[int]]
"""The new tokens of each row: one, or none once the row has stopped, or several that were looked up."""


def generate(
    model: LanguageModel,
    ids: Int[Tensor, "batch seq_len"],
    *,
    max_new_tokens: int,
    sampling: Sampling = Sampling(),  # noqa: B008  a frozen value
    real_tokens: Bool[Tensor, "batch seq_len"] | None = None,
    stop_tokens: Sequence[int] | Tensor = (),
    stop_strings: Sequence[str] = (),
    decode: Callable[[list[int]], str] | None = None,
    lookup: Lookup | None = None,
    cache: ModelCache | None = None,
) -> list[list[int]]:
    """Continue each text of a batch.

    Args:
        model: in evaluation mode, or dropout acts.
        ids: (batch, seq_len) the prompts, padded on any side where they differ in length.
        max_new_tokens: how many tokens a row gets at most.
        sampling: how each token is chosen. Default: the one of the highest score.
        real_tokens: (batch, seq_len) which tokens are no padding. Default: all.
        stop_tokens: a row ends with any of them, which is the last of its tokens.
        stop_strings: a row ends with the token that completes any of them in its new text.
        decode: what makes a text of tokens, for `stop_strings`: a tokenizer's own.
        lookup: look the next tokens up in the text itself, and check several in one call: the same tokens, in fewer
            calls where a text repeats itself (in bfloat16 and float16 several tokens at once are rounded otherwise than
            one by one, so that near ties may fall out differently). Only for the highest score.
        cache: what holds earlier tokens of these rows and takes the new ones. Default: a new one, of the model's own
            choice (`make_cache`).

    Returns:
        The new tokens of each row.

    Raises:
        ConfigError: what does not fit; more tokens than a position table has rows; a row without a token.
        UnsupportedError: a lookup with another choice than the highest score.

    Example:
        >>> generate(model, ids, max_new_tokens=20, sampling=Sampling(temperature=0.8, top_p=0.9, seed=0))
    """
    steps = stream(
        model,
        ids,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        real_tokens=real_tokens,
        stop_tokens=stop_tokens,
        stop_strings=stop_strings,
        decode=decode,
        lookup=lookup,
        cache=cache,
    )
    return [[token for tokens in row for token in tokens] for row in zip(*steps, strict=True)]


def stream(
    model: LanguageModel,
    ids: Int[Tensor, "batch seq_len"],
    *,
    max_new_tokens: int,
    sampling: Sampling = Sampling(),  # noqa: B008  a frozen value
    real_tokens: Bool[Tensor, "batch seq_len"] | None = None,
    stop_tokens: Sequence[int] | Tensor = (),
    stop_strings: Sequence[str] = (),
    decode: Callable[[list[int]], str] | None = None,
    lookup: Lookup | None = None,
    cache: ModelCache | None = None,
) -> Iterator[Step]:
    """Yield the tokens of `generate` as they come: of each row those of one call, none once it has stopped.

    Between steps the cache holds each row's text but for its last token, to go on from; so it does after an iteration
    that was left, or in which a call was interrupted: then the text is what had been yielded. (Where the interrupted
    call had overwritten what a full ring held, the cache is empty.)

    Args and raises: as of `generate`.
    """
    _check_kinds(model, sampling, lookup, cache)
    require_size("max_new_tokens", max_new_tokens)
    stopping = Stopping(max_new_tokens, stop_tokens, stop_strings, decode)
    texts = _read_prompts(model, ids, real_tokens)
    model.require_causal()
    cache = model.make_cache(spare=0 if lookup is None else lookup.num_tokens) if cache is None else cache
    cache.settle()
    _require_fit(cache, texts, lookup)
    _require_places(model, cache, texts, max_new_tokens)
    generator = sampling.make_generator(ids.device)
    seen = _seen_in(texts, model, sampling, ids.device)

    before = cache.lengths or (0,) * len(texts)
    new: list[list[int]] = [[] for _ in texts]
    coming: list[list[int]] = []
    is_done = [False] * len(texts)

    def choose(scores: Tensor) -> list[int]:
        chosen: list[int] = choose_tokens(scores, sampling, seen=seen, generator=generator).tolist()
        return chosen

    while not all(is_done):
        given = _kept(before, texts, new)
        if coming and cache.lengths != given:
            raise ConfigError(
                f"the cache must be as the last step left it, of {list(given)} tokens; got {list(cache.lengths)}: it "
                "has been used since"
            )
        try:
            if coming:
                proposals = _propose(lookup, texts, new, is_done, max_new_tokens)
                coming = _advance(model, cache, [tokens[-1] for tokens in coming], proposals, is_done, choose)
            else:
                coming = [[token] for token in choose(_read_texts(model, cache, ids, real_tokens))]
            cut = [
                ([], True) if done else stopping.cut(mine, tokens)
                for done, mine, tokens in zip(is_done, new, coming, strict=True)
            ]
            new = [mine + taken for mine, (taken, _) in zip(new, cut, strict=True)]
            if lookup is not None:  # what was proposed and did not come is in the cache, too
                cache.crop(_kept(before, texts, new))
        except BaseException:
            _go_back(cache, given)
            raise
        is_done = [done for _, done in cut]
        for row, (taken, _) in enumerate(cut):
            if seen is not None:
                seen[row, taken] = True
        yield [taken for taken, _ in cut]


def _check_kinds(model: object, sampling: object, lookup: object, cache: object) -> None:
    require_instance("model", model, LanguageModel)
    require_instance("sampling", sampling, Sampling)
    for name, given, kind in (("lookup", lookup, Lookup), ("cache", cache, ModelCache)):
        if given is not None:
            require_instance(name, given, kind)
    assert isinstance(sampling, Sampling)
    if lookup is not None and (not sampling.is_greedy or sampling.repetition_penalty != 1):
        raise UnsupportedError(
            f"lookup needs the token of the highest score, without a repetition penalty; got {sampling}"
        )


def _seen_in(
    texts: list[list[int]], model: LanguageModel, sampling: Sampling, device: torch.device
) -> Bool[Tensor, "batch vocab_size"] | None:
    """Return which tokens of the vocabulary each text has, where a penalty reads it."""
    if sampling.repetition_penalty == 1:
        return None
    vocab_size = model.head.num_outputs
    seen = torch.zeros(len(texts), vocab_size, dtype=torch.bool, device=device)
    for row, text in enumerate(texts):
        seen[row, [token for token in text if 0 <= token < vocab_size]] = True  # the model refuses others
    return seen


def _propose(
    lookup: Lookup | None, texts: list[list[int]], new: list[list[int]], is_done: list[bool], max_new_tokens: int
) -> list[list[int]]:
    """Return what each row looks up to come after its text: never more than it may still take beside one."""
    if lookup is None:
        return [[] for _ in texts]
    return [
        [] if done else lookup.propose(text + mine)[: max_new_tokens - len(mine) - 1]
        for done, text, mine in zip(is_done, texts, new, strict=True)
    ]


def _kept(before: Sequence[int], texts: list[list[int]], new: list[list[int]]) -> tuple[int, ...]:
    """Return how many tokens of each row a cache holds between steps: all but the last; before the first step none."""
    rows = zip(before, texts, new, strict=True)
    return tuple(old + len(text) + len(mine) - 1 if mine else old for old, text, mine in rows)


def _go_back(cache: ModelCache, lengths: Sequence[int]) -> None:
    """Let a cache hold what it held before a call that was interrupted; nothing, where it cannot."""
    try:
        cache.settle()
        if cache.lengths:
            cache.crop(lengths)
    except ConfigError:
        cache.reset()


@torch.no_grad()  # here and not around `stream`, which would be left between steps with gradients off
def _read_texts(model: LanguageModel, cache: ModelCache, ids: Tensor, real_tokens: Tensor | None) -> Tensor:
    """Run the prompts, and return the scores of what follows each row's last real token."""
    hidden = model.body(ids, cache=cache, real_tokens=real_tokens)
    if real_tokens is None:
        return model.project(hidden[:, -1])
    places = torch.arange(hidden.shape[1], device=hidden.device)
    last = torch.where(real_tokens, places, -1).amax(1)
    return model.project(hidden[torch.arange(len(hidden), device=hidden.device), last])


@torch.no_grad()
def _advance(
    model: LanguageModel,
    cache: ModelCache,
    last: list[int],
    proposals: list[list[int]],
    is_done: list[bool],
    choose: Callable[[Tensor], list[int]],
) -> list[list[int]]:
    """Run each row's last token, and those proposed to follow, and return what really follows: at least one token."""
    device = model.body.token_table.weight.device
    width = 1 + max(map(len, proposals))
    rows = [[token, *more] + [0] * (width - 1 - len(more)) for token, more in zip(last, proposals, strict=True)]
    counts = [0 if done else 1 + len(more) for done, more in zip(is_done, proposals, strict=True)]
    real_tokens = None
    if min(counts) < width:
        real_tokens = torch.arange(width, device=device) < torch.tensor(counts, device=device).unsqueeze(1)
    hidden = model.body(torch.tensor(rows, device=device), cache=cache, real_tokens=real_tokens)
    if width == 1:
        return [[token] for token in choose(model.project(hidden[:, 0]))]
    best = model.project(hidden).argmax(-1).tolist()
    coming = []
    for more, choices in zip(proposals, best, strict=True):
        agreed = 0
        while agreed < len(more) and more[agreed] == choices[agreed]:
            agreed += 1
        coming.append([*more[:agreed], choices[agreed]])
    return coming


def _read_prompts(model: LanguageModel, ids: object, real_tokens: object) -> list[list[int]]:
    """Return the real tokens of each row."""
    require_ids("ids", ids)
    assert isinstance(ids, Tensor)
    explain_device("ids", ids, model.body.token_table.weight)
    if ids.is_meta:
        raise ConfigError("ids must hold numbers to be continued; got some on the meta device")
    rows = ids.tolist()
    if real_tokens is not None:
        if not isinstance(real_tokens, Tensor) or real_tokens.shape != ids.shape or real_tokens.dtype != torch.bool:
            raise ConfigError(
                f"real_tokens must hold a bool for each token, shape {tuple(ids.shape)}; got {described(real_tokens)}"
            )
        rows = [
            [token for token, is_real in zip(row, real, strict=True) if is_real]
            for row, real in zip(rows, real_tokens.tolist(), strict=True)
        ]
    if not rows or not all(rows):
        raise ConfigError("each row must have a token to continue from; got one without any")
    return rows


def _require_fit(cache: ModelCache, texts: list[list[int]], lookup: Lookup | None) -> None:
    """Raise ConfigError where a cache is of other rows, or cannot take back what a lookup proposes in vain."""
    if cache.lengths and len(cache.lengths) != len(texts):
        raise ConfigError(f"the cache must be of {len(texts)} rows, one for each text; got {len(cache.lengths)}")
    for layer in cache.layers:
        if lookup is not None and layer.spare is not None and layer.spare + 1 < lookup.num_tokens:
            raise ConfigError(
                f"lookup.num_tokens must be at most {layer.spare + 1}, which the cache's rings can take back; got "
                f"{lookup.num_tokens}: make the cache by model.make_cache(spare={lookup.num_tokens})"
            )


def _require_places(model: LanguageModel, cache: ModelCache, texts: list[list[int]], max_new_tokens: int) -> None:
    """Raise ConfigError where a position table is too short for what is to come; the last token needs no place."""
    table = model.body.positions
    if not isinstance(table, LearnedPositions):
        return
    before = cache.lengths or (0,) * len(texts)
    longest = max(old + len(text) for old, text in zip(before, texts, strict=True))
    if longest > table.max_positions:
        raise ConfigError(
            f"a text must be of at most {table.max_positions} tokens, the rows of the model's position table; "
            f"got {longest}"
        )
    if longest + max_new_tokens - 1 > table.max_positions:
        raise ConfigError(
            f"max_new_tokens must be at most {table.max_positions - longest + 1} for the longest text, as the model's "
            f"position table has {table.max_positions} rows; got {max_new_tokens}"
        )
