"""The weights of transformers' models on a tape, in the order in which the modules list them.

The order matters little: an optimizer that works tensor by tensor still holds something of the one before.
"""

from collections.abc import Sequence

from headwise.config.attention import AttentionConfig
from headwise.config.latent import LatentAttentionConfig
from headwise.config.linear import LinearAttentionConfig
from headwise.config.model import BlockConfig, FeedForwardConfig, ModelConfig, PatchConfig
from headwise.config.position import T5Bias
from headwise.config.vision_model import COMPATIBLE, GrowingPatches, MapPlaces, StackedAttentionConfig
from headwise.cost.step.lora import add_adapter
from headwise.cost.step.run import Family
from headwise.cost.step.tape import Shape, Tape, Value


class ModelWeights:
    """The weights of a model: `top` by name, `layers` and `encoder` one mapping by name for each block.

    Args:
        tape: where they are allocated.
        config: the model.
        blocks: the layers to make, which may be fewer than the model's.
        family: says in which order, and what is fused.
        dtype: of the weights.
        num_frozen: how many of the blocks do not learn, nor do the embeddings and all of an encoder; 0: all learn.
    """

    def __init__(
        self,
        tape: Tape,
        config: ModelConfig,
        blocks: Sequence[BlockConfig],
        family: Family,
        dtype: str,
        *,
        num_frozen: int = 0,
    ):
        self.top: dict[str, Value] = {}
        self._tape = tape
        self._dtype = dtype
        self._family = family
        self._is_frozen = num_frozen > 0
        norm = blocks[0].norm
        with tape.owned_by("embeddings"):
            self._embeddings(config, norm)
        self.encoder = self._encoder(config, norm)
        self.layers: list[dict[str, Value]] = []
        for index, block in enumerate(blocks):
            self._is_frozen = index < num_frozen
            self.layers.append(self._layer(block, f"layer {index}"))
        self._is_frozen = False
        with tape.owned_by("head"):
            self._head(config, norm)

    def _embeddings(self, config: ModelConfig, norm: str) -> None:
        width = config.embed_dim
        if isinstance(config.patches, MapPlaces):
            self._around_places(config.patches, width, has_map=config.model_type == COMPATIBLE)
            return
        if config.patches is not None:
            self._patches(config.patches, width)
            return
        tables = {
            "token table": config.vocab_size,
            "position table": config.position_table_size,
            "type table": config.num_token_types,
        }
        last = "position table" if config.model_type in ("roberta", "xlm-roberta") else None  # even after the norm
        for name, rows in tables.items():
            if rows and name != last:
                self.top[name] = self._parameter(name, (rows, width))
        if config.embedding_norm:
            self._norm(self.top, "norm", width, norm)
        if last is not None and tables[last]:
            self.top[last] = self._parameter(last, (tables[last], width))

    def _patches(self, patches: PatchConfig, width: int) -> None:
        """A convolution over patches, and where images have one size a class token and a position for each token."""
        side = patches.patch_size
        if not isinstance(patches, GrowingPatches):
            self.top["class token"] = self._parameter("class token", (1, 1, width))
            self.top["position table"] = self._parameter("position table", (1, patches.num_tokens, width))
        self.top["patch weight"] = self._parameter("patch weight", (width, patches.num_channels, side, side))
        self.top["patch bias"] = self._parameter("patch bias", (width,))

    def _around_places(self, places: MapPlaces, width: int, *, has_map: bool) -> None:
        """Three 1 x 1 convolutions with batch norms, and the compatible form's linear map of places."""
        into, out = places.num_channels, places.out_channels
        for name, inputs, outputs in (("cv1", into, width), ("cv2", into, width), ("cv3", 2 * width, out)):
            with self._tape.owned_by(name):
                self.top[f"{name} weight"] = self._parameter(f"{name} weight", (outputs, inputs, 1, 1))
                self._norm(self.top, f"{name} norm", outputs, "layernorm")
        if has_map:
            self._linear(self.top, "linear", width, width, bias=True)

    def _encoder(self, config: ModelConfig, norm: str) -> list[dict[str, Value]]:
        if config.encoder is None:
            return []
        layers = [self._layer(block, f"encoder layer {index}") for index, block in enumerate(config.encoder.blocks)]
        with self._tape.owned_by("encoder"):
            self._norm(self.top, "encoder final norm", config.embed_dim, norm)
        return layers

    def _layer(self, block: BlockConfig, owner: str) -> dict[str, Value]:
        weights: dict[str, Value] = {}
        for part in self._family.layer_weights:
            branch = next(name for name in ("cross-attention", "attention", "feed-forward") if part.startswith(name))
            if (branch == "cross-attention" and block.cross_attention is None) or not _has_norm(block, part):
                continue
            with self._tape.owned_by(f"{owner} {branch}"):
                if part.endswith("norm"):
                    self._norm(weights, part, block.attention.embed_dim, block.norm)
                elif part == "feed-forward":
                    self._feed_forward(weights, block.feed_forward)
                elif part == "cross-attention" and block.cross_attention is not None:
                    own: dict[str, Value] = {}
                    self._attention(own, block.cross_attention)
                    weights |= {f"cross {name}": weight for name, weight in own.items()}
                elif isinstance(block.attention, LatentAttentionConfig):
                    self._latent_attention(weights, block.attention)
                elif isinstance(block.attention, LinearAttentionConfig):
                    self._linear_attention(weights, block.attention)
                elif isinstance(block.attention, StackedAttentionConfig):
                    self._stacked_attention(weights, block.attention)
                elif isinstance(block.attention, AttentionConfig):
                    self._attention(weights, block.attention)
        return weights

    def _attention(self, weights: dict[str, Value], config: AttentionConfig) -> None:
        has_bias, width = config.projection_bias is not False, config.embed_dim
        projections: tuple[tuple[str, int], ...] = (
            ("q_proj", config.num_heads * config.head_dim * (2 if config.output_gate else 1)),
            ("k_proj", config.num_kv_heads * config.head_dim),
            ("v_proj", config.num_kv_heads * config.v_head_dim),
        )
        if "qkv_proj" in self._family.fused:
            projections = (("qkv_proj", sum(outputs for _, outputs in projections)),)
        for name, outputs in projections:
            self._linear(weights, name, width, outputs, bias=has_bias)
        concat_width = config.num_heads * config.v_head_dim
        self._linear(weights, "out_proj", concat_width, width, bias=config.projection_bias is True)
        if config.sink:
            weights["sink"] = self._parameter("sink", (config.num_heads,))
        if config.qk_norm:
            is_whole = config.qk_norm_over == "projection"
            for name, num_heads in (("query norm", config.num_heads), ("key norm", config.num_kv_heads)):
                self._norm(weights, name, config.head_dim * (num_heads if is_whole else 1), "rmsnorm")
        if isinstance(config.position, T5Bias) and config.position.owns_table:
            shape = (config.position.num_buckets, config.num_heads)
            weights["bias table weight"] = self._parameter("bias table weight", shape)

    def _stacked_attention(self, weights: dict[str, Value], config: StackedAttentionConfig) -> None:
        width = config.embed_dim
        for name in ("q_proj", "k_proj", "v_proj"):
            self._linear(weights, f"first {name}", width, width, bias=False)
        self._linear(weights, "in_proj", width, 3 * width, bias=True)
        self._linear(weights, "out_proj", width, width, bias=True)

    def _latent_attention(self, weights: dict[str, Value], config: LatentAttentionConfig) -> None:
        width, heads, bias = config.embed_dim, config.num_heads, config.projection_bias
        query_width = heads * config.head_dim
        if config.q_lora_rank is None:
            self._linear(weights, "q_proj", width, query_width, bias=False)
        else:
            self._linear(weights, "q_a_proj", width, config.q_lora_rank, bias=bias)
            self._norm(weights, "latent query norm", config.q_lora_rank, "rmsnorm")
            self._linear(weights, "q_b_proj", config.q_lora_rank, query_width, bias=False)
        rank = config.kv_lora_rank
        self._linear(weights, "kv_a_proj", width, rank + config.qk_rope_head_dim, bias=bias)
        self._norm(weights, "latent norm", rank, "rmsnorm")
        self._linear(weights, "kv_b_proj", rank, heads * (config.qk_nope_head_dim + config.v_head_dim), bias=False)
        self._linear(weights, "out_proj", heads * config.v_head_dim, width, bias=bias)

    def _linear_attention(self, weights: dict[str, Value], config: LinearAttentionConfig) -> None:
        """A gated delta net: the step's bias and the decay of each state, a convolution, and projections."""
        width, heads = config.embed_dim, config.num_value_heads
        for name, shape in (
            ("step bias", (heads,)),
            ("log decay", (heads,)),
            ("convolution weight", (config.conv_width, 1, config.conv_kernel_size)),
        ):
            weights[name] = self._parameter(name, shape)
        self._linear(weights, "qkvz_proj", width, config.conv_width + config.value_width, bias=False)
        self._linear(weights, "ba_proj", width, 2 * heads, bias=False)
        self._norm(weights, "output norm", config.value_head_dim, "rmsnorm")
        self._linear(weights, "out_proj", config.value_width, width, bias=False)

    def _feed_forward(self, weights: dict[str, Value], config: FeedForwardConfig) -> None:
        width, hidden = config.embed_dim, config.hidden_dim
        if config.num_experts == 1:
            self._dense(weights, width, hidden, is_gated=config.gated, bias=config.bias)
            return
        self._linear(weights, "router", width, config.num_experts, bias=config.router_bias)
        for name, inputs, outputs in (("gate_up_proj", width, 2 * hidden), ("down_proj", hidden, width)):
            weights[f"{name} weight"] = self._parameter(f"{name} weight", (config.num_experts, outputs, inputs))
            if config.bias:
                weights[f"{name} bias"] = self._parameter(f"{name} bias", (config.num_experts, outputs))
        if config.shared_hidden_dim:
            own: dict[str, Value] = {}
            self._dense(own, width, config.shared_hidden_dim, is_gated=True, bias=False)
            weights |= {f"shared {name}": weight for name, weight in own.items()}
        if config.shared_gate:
            self._linear(weights, "shared_expert_gate", width, 1, bias=False)

    def _dense(self, weights: dict[str, Value], width: int, hidden: int, *, is_gated: bool, bias: bool) -> None:
        if "gate_up_proj" in self._family.fused:
            self._linear(weights, "gate_up_proj", width, 2 * hidden, bias=bias)
        else:
            if is_gated:
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
            self.top["output bias"] = self._parameter("output bias", (head.num_outputs,))
        if head.transform:
            self._linear(self.top, "transform", width, width, bias=True)
            self._norm(self.top, "transform norm", width, norm)
        if head.tied:
            self.top["output weight"] = self.top["token table"]
        else:
            self.top["output weight"] = self._parameter("output weight", (head.num_outputs, width))

    def _linear(
        self,
        weights: dict[str, Value],
        name: str,
        inputs: int,
        outputs: int,
        *,
        bias: bool,
    ) -> None:
        shape: Shape = (inputs, outputs) if self._family.weights_turned else (outputs, inputs)
        weights[f"{name} weight"] = self._parameter(f"{name} weight", shape)
        if bias:
            weights[f"{name} bias"] = self._parameter(f"{name} bias", (outputs,))
        add_adapter(self._tape, weights, name, inputs, outputs, self._dtype)

    def _norm(self, weights: dict[str, Value], name: str, width: int, kind: str) -> None:
        weights[f"{name} weight"] = self._parameter(f"{name} weight", (width,))
        if kind == "layernorm":
            weights[f"{name} bias"] = self._parameter(f"{name} bias", (width,))

    def _parameter(self, name: str, shape: Shape) -> Value:
        return self._tape.parameter(name, shape, self._dtype, is_frozen=self._is_frozen)


def _has_norm(block: BlockConfig, part: str) -> bool:
    """Tell whether a block has a part that is a norm; True of other parts."""
    if part.endswith("output norm"):
        return block.norm_placement in ("both", "output")
    is_shared = block.shared_norm and part == "feed-forward norm"
    return not part.endswith("norm") or (block.norm_placement != "output" and not is_shared)
