"""The weights of transformers' models on a tape, in the order in which the modules list them.

The order matters little: an optimizer that works tensor by tensor still holds something of the one before.
"""

from collections.abc import Sequence

from headwise.config.attention import AttentionConfig
from headwise.config.model import BlockConfig, FeedForwardConfig, ModelConfig
from headwise.cost.step.tape import Shape, Tape, Value


class ModelWeights:
    """The weights of a model: `top` by name, `layers` one mapping by name for each block.

    Args:
        tape: where they are allocated.
        config: the model.
        blocks: the layers to make, which may be fewer than the model's.
    """

    def __init__(self, tape: Tape, config: ModelConfig, blocks: Sequence[BlockConfig]):
        self.top: dict[str, Value] = {}
        self.layers: list[dict[str, Value]] = []
        self._tape = tape
        self._is_turned = config.model_type == "gpt2"  # its projections are (inputs, outputs)
        with tape.owned_by("embeddings"):
            self._embeddings(config, blocks[0].norm)
        for index, block in enumerate(blocks):
            self.layers.append({})
            self._layer(self.layers[index], config.model_type, block, f"layer {index}")
        with tape.owned_by("head"):
            self._head(config, blocks[0].norm)

    def _embeddings(self, config: ModelConfig, norm: str) -> None:
        for name, rows in (
            ("token table", config.vocab_size),
            ("position table", config.position_table_size),
            ("type table", config.num_token_types),
        ):
            if rows:
                self.top[name] = self._tape.parameter(name, (rows, config.embed_dim))
        if config.embedding_norm:
            self._norm(self.top, "norm", config.embed_dim, norm)

    def _layer(self, weights: dict[str, Value], model_type: str, block: BlockConfig, owner: str) -> None:
        def attention_norm() -> None:
            with self._tape.owned_by(f"{owner} attention"):
                self._norm(weights, "attention norm", block.attention.embed_dim, block.norm)

        if model_type == "gpt2":
            attention_norm()
        with self._tape.owned_by(f"{owner} attention"):
            self._attention(weights, block.attention)
        if model_type == "bert":
            attention_norm()
        with self._tape.owned_by(f"{owner} feed-forward"):
            if model_type == "gpt2":
                self._norm(weights, "feed-forward norm", block.attention.embed_dim, block.norm)
            self._feed_forward(weights, block.feed_forward)
        if model_type not in ("bert", "gpt2"):
            attention_norm()
        if model_type != "gpt2":
            with self._tape.owned_by(f"{owner} feed-forward"):
                self._norm(weights, "feed-forward norm", block.attention.embed_dim, block.norm)

    def _attention(self, weights: dict[str, Value], config: AttentionConfig) -> None:
        has_bias, width = config.projection_bias is not False, config.embed_dim
        projections: tuple[tuple[str, int], ...] = (
            ("q_proj", config.num_heads * config.head_dim),
            ("k_proj", config.num_kv_heads * config.head_dim),
            ("v_proj", config.num_kv_heads * config.v_head_dim),
        )
        if self._is_turned:
            projections = (("qkv_proj", sum(outputs for _, outputs in projections)),)
        for name, outputs in projections:
            self._linear(weights, name, width, outputs, bias=has_bias)
        concat_width = config.num_heads * config.v_head_dim
        self._linear(weights, "out_proj", concat_width, width, bias=config.projection_bias is True)
        if config.qk_norm:
            self._norm(weights, "query norm", config.head_dim, "rmsnorm")
            self._norm(weights, "key norm", config.head_dim, "rmsnorm")

    def _feed_forward(self, weights: dict[str, Value], config: FeedForwardConfig) -> None:
        width, hidden, bias = config.embed_dim, config.hidden_dim, config.bias
        if config.num_experts > 1:
            self._linear(weights, "router", width, config.num_experts, bias=False)
            for name, shape in (("gate_up_proj", (2 * hidden, width)), ("down_proj", (width, hidden))):
                weights[f"{name} weight"] = self._tape.parameter(f"{name} weight", (config.num_experts, *shape))
            return
        if config.gated:
            self._linear(weights, "gate_proj", width, hidden, bias=bias)
        self._linear(weights, "up_proj", width, hidden, bias=bias)
        self._linear(weights, "down_proj", hidden, width, bias=bias)

    def _head(self, config: ModelConfig, norm: str) -> None:
        width, head = config.embed_dim, config.head
        if config.final_norm:
            self._norm(self.top, "final norm", width, norm)
        if config.pooler:
            self._linear(self.top, "pooler", width, width, bias=True)
        if head is None:
            return
        if head.bias:
            self.top["output bias"] = self._tape.parameter("output bias", (head.num_outputs,))
        if head.transform:
            self._linear(self.top, "transform", width, width, bias=True)
            self._norm(self.top, "transform norm", width, norm)
        if head.tied:
            self.top["output weight"] = self.top["token table"]
        else:
            self.top["output weight"] = self._tape.parameter("output weight", (head.num_outputs, width))

    def _linear(
        self,
        weights: dict[str, Value],
        name: str,
        inputs: int,
        outputs: int,
        *,
        bias: bool,
    ) -> None:
        shape: Shape = (inputs, outputs) if self._is_turned else (outputs, inputs)
        weights[f"{name} weight"] = self._tape.parameter(f"{name} weight", shape)
        if bias:
            weights[f"{name} bias"] = self._tape.parameter(f"{name} bias", (outputs,))

    def _norm(self, weights: dict[str, Value], name: str, width: int, kind: str) -> None:
        weights[f"{name} weight"] = self._tape.parameter(f"{name} weight", (width,))
        if kind == "layernorm":
            weights[f"{name} bias"] = self._tape.parameter(f"{name} bias", (width,))
