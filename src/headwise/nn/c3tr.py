"""C3TR: a cross-stage partial block whose inner stage attends over the places of a feature map."""

from dataclasses import asdict

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from headwise.config.checks import require_instance
from headwise.config.vision import C3TRConfig
from headwise.errors import ConfigError, UnsupportedError
from headwise.nn.checks import explain_refusal
from headwise.nn.vision import TransformerStage, check_map, to_map, to_tokens

NORM_MOMENTUM = 0.03  # of batch norms, as YOLOv5 sets it when it makes a model, along with an eps of 1e-3 (issue 3766)


class C3TR(nn.Module):
    """A narrow copy of a feature map attends to itself, another passes beside it, and both are mixed.

    `output = cv3([m(cv1(x)), cv2(x)])`: `cv1`, `cv2` and `cv3` are 1 x 1 convolutions with batch norm and SiLU, `m` is
    a Transformer over the places of its map, and brackets join channels. The map may have any height and width.

    Two forms. By default `m` is a `TransformerStage`: positions by sines of row and column, pre-norm blocks with one
    projection each for queries, keys and values. With `compatible=True` it is a `PlainTransformerStage`: the layout,
    the names of weights and the arithmetic of YOLOv5's block, so that weights trained there give the same outputs here.
    Neither form computes a map of weights.

    Args:
        in_channels: channels of the feature map that comes in.
        out_channels: channels of the one that goes out.
        num_layers: number of Transformer layers.
        num_heads: number of heads, which must divide `int(out_channels * expansion)`. YOLOv5 always has 4.
        expansion: width of the inner stage, as a share of `out_channels`.
        hidden_dim: width inside each feed-forward. Default: 4 times the inner width; with `compatible` it is the inner
            width itself.
        norm_eps: what the batch norms add to the variance. YOLOv5's models have 1e-3, not torch's 1e-5.
        compatible: the layout and arithmetic of YOLOv5's block.
        impl: which implementation of `attention` computes it; with `compatible` torch's layer does, and only "auto" is
            left to choose.

    Attributes:
        config: the same settings as a `C3TRConfig`, every default filled in.

    Raises:
        ConfigError: settings that contradict each other.
        UnsupportedError: an unknown `impl`, or any but "auto" with `compatible`.

    Source: Wang et al. 2020, "CSPNet", section 3.1; with a Transformer inside: YOLOv5, pull request 2333, as of commit
    5081342.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_layers: int = 1,
        *,
        num_heads: int = 4,
        expansion: float = 0.5,
        hidden_dim: int | None = None,
        norm_eps: float = 1e-3,
        compatible: bool = False,
        impl: str = "auto",
    ):
        super().__init__()
        self.config = config = C3TRConfig.from_keywords(
            in_channels=in_channels,
            out_channels=out_channels,
            num_layers=num_layers,
            num_heads=num_heads,
            expansion=expansion,
            hidden_dim=hidden_dim,
            norm_eps=norm_eps,
            compatible=compatible,
        )
        inner = config.inner_channels
        # the names of the parts are those of published weights
        self.cv1 = PointwiseConvolution(in_channels, inner, norm_eps=norm_eps)
        self.cv2 = PointwiseConvolution(in_channels, inner, norm_eps=norm_eps)
        self.cv3 = PointwiseConvolution(2 * inner, out_channels, norm_eps=norm_eps)
        self.m: nn.Module
        if config.block is not None:
            self.m = TransformerStage(config.block, num_layers, impl=impl)
        elif impl == "auto":
            self.m = PlainTransformerStage(inner, num_heads, num_layers)
        else:
            raise UnsupportedError(
                'impl must be "auto" where compatible is True, since torch\'s own layer attends there; '
                f"got {impl!r}; leave compatible out to choose"
            )

    @classmethod
    def from_config(cls, config: C3TRConfig, *, impl: str = "auto") -> "C3TR":
        """Build the block that a config describes."""
        require_instance("config", config, C3TRConfig)
        return cls(**asdict(config), impl=impl)

    def forward(
        self, feature_map: Float[Tensor, "batch in_channels height width"]
    ) -> Float[Tensor, "batch out_channels height width"]:
        """Mix the features of each place with those of the others.

        Args:
            feature_map: (batch, in_channels, height, width).

        Raises:
            ConfigError: another number of channels, a map without a place, another dtype or device than the weights',
                one place in all in training, over which nothing can be normed.
        """
        check_map("feature_map", feature_map, "in_channels", self.config.in_channels)
        if 0 in feature_map.shape[2:]:
            raise ConfigError(
                f"feature_map must have at least 1 place on each side; got {feature_map.shape[2]} by "
                f"{feature_map.shape[3]}"
            )
        try:
            attended = self.m(self.cv1(feature_map))
            output: Tensor = self.cv3(torch.cat((attended, self.cv2(feature_map)), dim=1))
        except RuntimeError:
            explain_refusal(self, feature_map=feature_map)
            raise
        except ValueError:
            if feature_map[:, 0].numel() == 1:
                raise ConfigError(
                    "feature_map must have more than 1 place over the whole batch in training, since batch norms norm "
                    f"over them; got shape {tuple(feature_map.shape)} (eval() norms by what was remembered)"
                ) from None
            raise
        return output


class PointwiseConvolution(nn.Module):
    """`silu(bn(conv(x)))`, with a 1 x 1 convolution without bias: a linear map of each place, normed over all places.

    Args:
        in_channels: channels that come in.
        out_channels: channels that go out.
        norm_eps: what the batch norm adds to the variance.

    Source: Ioffe and Szegedy 2015, "Batch Normalization", section 3.2; SiLU: Elfwing et al. 2018,
    "Sigmoid-Weighted Linear Units for Neural Network Function Approximation in Reinforcement Learning", section 2.
    """

    def __init__(self, in_channels: int, out_channels: int, *, norm_eps: float):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 1, bias=False)
        self.bn = nn.BatchNorm2d(out_channels, eps=norm_eps, momentum=NORM_MOMENTUM)

    def forward(
        self, feature_map: Float[Tensor, "batch in_channels height width"]
    ) -> Float[Tensor, "batch out_channels height width"]:
        """Map each place by itself."""
        return functional.silu(self.bn(self.conv(feature_map)))


class PlainTransformerStage(nn.Module):
    """The Transformer inside YOLOv5's C3TR, as it is.

    `p = places, row by row; tokens = p + linear(p)`, then the layers. The sum is called a learned position embedding
    there, but it is the same linear map at every place: the stage does not know where a place is, and moving the
    places of its map about moves its output in the same way. That is kept, as published weights depend on it.

    Args:
        channels: width of the tokens, a multiple of `num_heads`.
        num_heads: number of heads.
        num_layers: number of layers.

    Source: YOLOv5, commit 5081342, models/common.py, `TransformerBlock` with as many channels in as out.
    """

    def __init__(self, channels: int, num_heads: int, num_layers: int):
        super().__init__()
        self.linear = nn.Linear(channels, channels)
        self.tr = nn.Sequential(*(PlainTransformerLayer(channels, num_heads) for _ in range(num_layers)))

    def forward(
        self, feature_map: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        """Let the places of each map look at each other."""
        places = to_tokens(feature_map).transpose(0, 1)  # (T, B, E), as torch's layer reads them
        tokens = self.tr(places + self.linear(places))
        return to_map(tokens.transpose(0, 1), *feature_map.shape[2:])


class PlainTransformerLayer(nn.Module):
    """One layer of YOLOv5's Transformer, as it is.

    `x = x + ma(q(x), k(x), v(x)); x = x + fc2(fc1(x))`. `ma` projects what `q`, `k` and `v` have projected already, and
    two linear maps in a row are one; nothing stands between `fc1` and `fc2`, which are one linear map too; there is no
    norm. All of that is kept, as published weights depend on it. The maps of weights, which are computed there and
    thrown away, are not.

    Args:
        channels: width of the tokens, a multiple of `num_heads`.
        num_heads: number of heads.

    Source: YOLOv5, commit 5081342, models/common.py, `TransformerLayer`.
    """

    def __init__(self, channels: int, num_heads: int):
        super().__init__()
        self.q = nn.Linear(channels, channels, bias=False)
        self.k = nn.Linear(channels, channels, bias=False)
        self.v = nn.Linear(channels, channels, bias=False)
        self.ma = nn.MultiheadAttention(channels, num_heads)
        self.fc1 = nn.Linear(channels, channels, bias=False)
        self.fc2 = nn.Linear(channels, channels, bias=False)

    def forward(self, tokens: Float[Tensor, "places batch channels"]) -> Float[Tensor, "places batch channels"]:
        """Let the tokens look at each other, then map each by itself."""
        seen, _ = self.ma(self.q(tokens), self.k(tokens), self.v(tokens), need_weights=False)
        tokens = tokens + seen
        output: Tensor = tokens + self.fc2(self.fc1(tokens))
        return output
