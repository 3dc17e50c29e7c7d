"""One part by matrix products, one matrix at a time in memory that is used again: everything that a kernel lacks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.ops.blocked.part import Part, PartGradients
from headwise.ops.blocked.tile import indices_of
from headwise.ops.call import Call
from headwise.ops.dropout import keep_pairs, key_states, query_states
from headwise.ops.obstacles import is_fake


class Plain:
    """Forward and backward of the parts of one call.

    With p = exp(s - lse): output = p v, and backward v' = p^T o', s' = p (o' v^T - delta), where delta is the product
    of output and its gradient, less the gradient of the logsumexp; q' = scale s' k, k' = scale s'^T q. A cap multiplies
    s' by 1 - tanh^2; dropout multiplies p by what it keeps, wherever p meets values.

    Args:
        call: the call, in the dtype of its inputs.
        seed: of the dropout, None without it.
        most_pairs: queries times keys of the largest part, of one head.

    Source: Dao et al. 2022, "FlashAttention", appendix B.
    """

    def __init__(self, call: Call, seed: Tensor | int | None, most_pairs: int):
        self._call, self._seed = call, seed
        self._most_scores = most_pairs * (call.sizes.num_heads // call.sizes.num_kv_heads)
        self._dtype = torch.promote_types(call.query.dtype, torch.float32)
        self._buffers: dict[str, Tensor] = {}

    def forward(
        self, part: Part, query: Tensor, key: Tensor, value: Tensor, tile: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the output of one part, and the logsumexp of its rows."""
        batch, heads, rows, _ = query.shape
        output = query.new_empty((batch, heads, rows, value.shape[-1]), dtype=self._dtype)
        logsumexp = query.new_empty((batch, heads, rows), dtype=self._dtype)
        kept = self._kept(part)
        self._make_buffers(["scores"])

        def compute(one: tuple[int, int]) -> None:
            weights = self._scores(query[one], key[one], _pick(tile, one))
            most = weights.amax(-1, keepdim=True).clamp_(min=torch.finfo(self._dtype).min)
            total = weights.sub_(most).exp_().sum(-1, keepdim=True)
            if kept is not None:
                weights.masked_fill_(~kept(one), 0.0)
                weights *= 1 / (1 - self._call.dropout_p)
            torch.mm(weights, value[one].to(self._dtype), out=output[one])
            output[one] /= total.masked_fill(total == 0, 1.0)
            logsumexp[one] = (most + total.log()).squeeze(-1)

        for one in self._matrices(batch, heads):
            compute(one)
        return output.to(query.dtype), logsumexp

    def backward(
        self,
        part: Part,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        tile: Tensor | None,
        logsumexp: Tensor,
        delta: Tensor,
        *,
        wants_scores: bool,
    ) -> PartGradients:
        """Return the gradients of one part, in float32 or better.

        Args:
            part: the part.
            grad: of its output.
            query, key, value, tile: as of `forward`.
            logsumexp: of all that the rows' weights are shares of, a sink included.
            delta: of each row: output times its gradient, less the gradient of the logsumexp.
            wants_scores: for the sake of a bias.
        """
        batch, heads, rows, _ = query.shape
        made = [torch.empty_like(tensor, dtype=self._dtype) for tensor in (query, key, value)]
        scores = query.new_empty((batch, heads, rows, key.shape[2]), dtype=self._dtype) if wants_scores else None
        # A row that reads nothing has -inf here; its weights must come out as 0.
        logsumexp = logsumexp.masked_fill(logsumexp.isneginf(), torch.finfo(self._dtype).max)
        kept = self._kept(part)
        softcap, scale = self._call.softcap, self._call.score_scale
        names = ["scores", "changes", *(["used"] if kept else []), *(["slope"] if softcap is not None else [])]
        self._make_buffers(names)

        def compute(one: tuple[int, int]) -> None:
            of_output, of_query, of_key, of_value = (x[one].to(self._dtype) for x in (grad, query, key, value))
            weights = self._scores(of_query, of_key, _pick(tile, one), keeps_slope=softcap is not None)
            weights.sub_(logsumexp[one].unsqueeze(-1)).exp_()
            changes = self._buffer("changes", rows, key.shape[2])
            torch.mm(of_output, of_value.mT, out=changes)
            if kept is None:
                torch.mm(weights.mT, of_output, out=made[2][one])
            else:
                dropped, share = ~kept(one), 1 / (1 - self._call.dropout_p)
                changes.masked_fill_(dropped, 0.0).mul_(share)
                used = self._buffer("used", rows, key.shape[2])
                torch.mul(weights, share, out=used)
                torch.mm(used.masked_fill_(dropped, 0.0).mT, of_output, out=made[2][one])
            changes.sub_(delta[one].unsqueeze(-1)).mul_(weights)
            if scores is not None:
                scores[one] = changes
            if softcap is not None:
                changes *= self._buffer("slope", rows, key.shape[2])
            torch.mm(changes, of_key, out=made[0][one])
            torch.mm(changes.mT, of_query, out=made[1][one])

        for one in self._matrices(batch, heads):
            compute(one)
        made[0] *= scale
        made[1] *= scale
        return PartGradients(made[0], made[1], made[2], scores)

    def _scores(self, query: Tensor, key: Tensor, tile: Tensor | None, *, keeps_slope: bool = False) -> Tensor:
        """Return the scores of one matrix, capped, and with what is added to them."""
        softcap, scale = self._call.softcap, self._call.score_scale
        scores = self._buffer("scores", query.shape[0], key.shape[0])
        factor = scale if softcap is None else scale / softcap
        torch.mm(query.to(self._dtype) * factor, key.to(self._dtype).mT, out=scores)
        if softcap is not None:
            scores.tanh_()
            if keeps_slope:
                slope = self._buffer("slope", *scores.shape)
                torch.mul(scores, scores, out=slope)
                slope.neg_().add_(1)
            scores *= softcap
        return scores if tile is None else scores.add_(tile)

    def _kept(self, part: Part) -> "Kept | None":
        return None if self._seed is None else Kept(self._call, part, self._seed)

    def _matrices(self, batch: int, heads: int) -> list[tuple[int, int]]:
        """List the matrices of a part; of a call without numbers one, whose memory all others use again."""
        matrices = [(row, head) for row in range(batch) for head in range(heads)]
        return matrices[:1] if is_fake(self._call.query) else matrices

    def _make_buffers(self, names: Sequence[str]) -> None:
        """Make memory that every matrix uses again: fresh pages cost more than what is computed in them."""
        for name in names:
            if name not in self._buffers:
                self._buffers[name] = self._call.query.new_empty(self._most_scores, dtype=self._dtype)

    def _buffer(self, name: str, rows: int, columns: int) -> Tensor:
        return self._buffers[name][: rows * columns].view(rows, columns)


class Kept:
    """Which weights of the matrices of a part dropout keeps."""

    def __init__(self, call: Call, part: Part, seed: Tensor | int):
        places = part.places()
        query, key = indices_of(call, places)
        shape = (places.batch.shape[0], places.head.shape[1], part.queries_per_kv, part.num_queries, 1)
        states = query_states(seed, places.batch, places.head, query).expand(shape)
        self._queries = states.flatten(2, 3)  # (batch, kv heads, rows, 1)
        self._keys = key_states(seed, key)[:, :, 0]  # (batch or 1, kv heads or 1, 1, S')
        self._dropout_p = call.dropout_p

    def __call__(self, one: tuple[int, int]) -> Tensor:
        """Return which weights of one matrix are kept."""
        keys = _pick(self._keys, one)
        assert keys is not None
        return keep_pairs(self._queries[one], keys, self._dropout_p)


def _pick(tile: Tensor | None, one: tuple[int, int]) -> Tensor | None:
    """Return the matrix of a tensor whose first two dimensions may be 1."""
    if tile is None:
        return None
    row, head = one
    return tile[row if tile.shape[0] > 1 else 0, head if tile.shape[1] > 1 else 0]
