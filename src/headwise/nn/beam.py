"""beam_search: the best target texts of an encoder-decoder, several kept side by side."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headwise.config.checks import require_instance, require_number, require_size
from headwise.errors import ConfigError
from headwise.nn.checks import require_ids
from headwise.nn.seq2seq import Seq2Seq

MAX_EXPONENT = 250  # of 10, that a power of a length may have: scores over it are floats far from overflow


class Hypothesis(NamedTuple):
    """A target text: its tokens, the last of which ends it unless it was cut off, and its score."""

    tokens: list[int]
    score: float


@torch.no_grad()
def beam_search(
    model: Seq2Seq,
    source_ids: Int[Tensor, "batch source_len"],
    *,
    start_token: int,
    stop_token: int,
    max_new_tokens: int,
    num_beams: int = 4,
    length_penalty: float = 1.0,
    num_best: int = 1,
    real_source: Bool[Tensor, "batch source_len"] | None = None,
) -> list[list[Hypothesis]]:
    """Find target texts of high probability.

    Of each source `num_beams` beginnings are kept, those of the highest sum of log-probabilities. An ended text scores
    `sum / n ** length_penalty`, with n its number of tokens, the last one included. The search ends where the worst of
    `num_beams` ended texts scores at least what the best beginning would, were it to end now, or after
    `max_new_tokens`. One beam is greedy.

    Args:
        model: in evaluation mode.
        source_ids: (batch, source_len).
        start_token: what each target begins with; no part of the result.
        stop_token: what ends a target; one token.
        max_new_tokens: tokens of a target at most.
        num_beams: beginnings kept of each source.
        length_penalty: above 0 favours long texts, below 0 short ones.
        num_best: how many texts are returned of each source, at most `num_beams`; fewer where there are no more.
        real_source: (batch, source_len) which tokens are no padding, which may stand anywhere. Default: all.

    Returns:
        Of each source its texts, the best first.

    Raises:
        ConfigError: another model; numbers out of range, tokens that the model does not know, ids or `real_source` as
            of `Seq2Seq`; a penalty that makes a length's power overflow.

    Source: Sutskever et al. 2014, "Sequence to Sequence Learning with Neural Networks", section 3.2; the penalty:
    a power of the length, as Wu et al. 2016, "Google's Neural Machine Translation System", equation 14 has it at base.
    """
    require_instance("model", model, Seq2Seq)
    for name, number in (("max_new_tokens", max_new_tokens), ("num_beams", num_beams), ("num_best", num_best)):
        require_size(name, number)
    require_size("start_token", start_token, minimum=0, maximum=model.config.vocab_size - 1)
    require_size("stop_token", stop_token, minimum=0, maximum=model.head.num_outputs - 1)
    require_ids("source_ids", source_ids)
    require_number("length_penalty", length_penalty)
    if abs(length_penalty) * math.log10(max_new_tokens) > MAX_EXPONENT:
        raise ConfigError(
            f"length_penalty must keep {max_new_tokens} ** length_penalty between 1e-{MAX_EXPONENT} and "
            f"1e{MAX_EXPONENT}; got {length_penalty}"
        )
    if num_best > num_beams:
        raise ConfigError(f"num_best must be at most num_beams = {num_beams}; got {num_best}")
    num_texts, device = len(source_ids), source_ids.device
    repeat = torch.arange(num_texts, device=device).repeat_interleave(num_beams)
    memory = model.encode(source_ids, real_source)[repeat]
    real = None if real_source is None else real_source[repeat]
    cache = model.make_cache()
    searches = [_Search(num_beams, stop_token, max_new_tokens, length_penalty) for _ in range(num_texts)]
    last = torch.full((num_texts * num_beams, 1), start_token, device=device)
    while not all(search.is_done for search in searches):
        scores = model.decode(last, memory, real_source=real, cache=cache)[:, -1]
        log_probs = scores.double().log_softmax(-1).view(num_texts, num_beams, -1)
        rows: list[int] = []
        tokens: list[int] = []
        for number, search in enumerate(searches):
            origins, next_tokens = search.advance(log_probs[number])
            rows += [number * num_beams + origin for origin in origins]
            tokens += next_tokens
        cache.own.reorder(rows)  # beams of one source read the same memory, whichever row they come from
        last = torch.tensor(tokens, device=device).unsqueeze(1)
    return [search.ended[:num_best] for search in searches]


class _Search:
    """The beginnings and the ended texts of one source."""

    def __init__(self, num_beams: int, stop_token: int, max_new_tokens: int, length_penalty: float):
        self.num_beams, self.stop_token = num_beams, stop_token
        self.max_new_tokens, self.length_penalty = max_new_tokens, length_penalty
        self.beams: list[tuple[list[int], float]] = [([], 0.0)]  # at first they would all be one and the same
        self.ended: list[Hypothesis] = []
        self.is_done = False

    def advance(self, log_probs: Tensor) -> tuple[list[int], list[int]]:
        """Take the scores of what follows each beam; return from which beam each new one comes, and its token.

        Where there are fewer beginnings than beams, at the first step or with a vocabulary of a few tokens, the rows of
        the others are run for nothing, and what follows them is not read.
        """
        if self.is_done:
            return self._rows([])
        sums = log_probs[: len(self.beams)] + log_probs.new_tensor([score for _, score in self.beams]).unsqueeze(1)
        best = sums.flatten().topk(min(2 * self.num_beams, sums.numel()))
        beams: list[tuple[int, list[int], float]] = []
        for rank, (score, at) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
            origin, token = divmod(at, log_probs.shape[1])
            tokens = [*self.beams[origin][0], token]
            if token == self.stop_token or len(tokens) == self.max_new_tokens:
                if rank < self.num_beams:
                    self._end(tokens, score)
            elif len(beams) < self.num_beams:
                beams.append((origin, tokens, score))
        self.beams = [(tokens, score) for _, tokens, score in beams]
        self.is_done = not beams or (
            len(self.ended) == self.num_beams
            and self.ended[-1].score >= beams[0][2] / len(beams[0][1]) ** self.length_penalty
        )
        return self._rows(beams)

    def _rows(self, beams: list[tuple[int, list[int], float]]) -> tuple[list[int], list[int]]:
        """Return origin and last token of each beam, with rows for those that are missing."""
        missing = self.num_beams - len(beams)
        origins, tokens = [origin for origin, _, _ in beams], [tokens[-1] for _, tokens, _ in beams]
        return origins + [0] * missing, tokens + [self.stop_token] * missing

    def _end(self, tokens: list[int], score: float) -> None:
        self.ended.append(Hypothesis(tokens, score / len(tokens) ** self.length_penalty))
        self.ended.sort(key=lambda one: -one.score)
        del self.ended[self.num_beams :]
