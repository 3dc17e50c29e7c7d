"""headwise: what attention costs, what makes it cheaper, and what its heads do.

The names below are loaded when they are first used, so that `import headwise` imports neither torch nor anything heavy.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwise.api.bench import bench as bench
    from headwise.api.compare import compare as compare
    from headwise.api.count import count as count
    from headwise.api.data import data as data
    from headwise.api.explain import explain as explain
    from headwise.api.explain_oom import explain_oom as explain_oom
    from headwise.api.fit import fit as fit
    from headwise.api.inspect import inspect as inspect
    from headwise.api.oom import oom as oom
    from headwise.api.report import make_report as make_report
    from headwise.api.tracking import track as track
    from headwise.caches.base import CacheView as CacheView
    from headwise.caches.base import KVCache as KVCache
    from headwise.caches.model import ModelCache as ModelCache
    from headwise.caches.paged import PagedCache as PagedCache
    from headwise.caches.quantized import QuantizedCache as QuantizedCache
    from headwise.caches.rolling import RollingCache as RollingCache
    from headwise.caches.slots import CrossCache as CrossCache
    from headwise.caches.slots import GrowingCache as GrowingCache
    from headwise.caches.slots import StaticCache as StaticCache
    from headwise.config.attention import AttentionConfig as AttentionConfig
    from headwise.config.attention import Rotary as Rotary
    from headwise.config.latent import LatentAttentionConfig as LatentAttentionConfig
    from headwise.config.linear import LinearAttentionConfig as LinearAttentionConfig
    from headwise.config.model import BlockConfig as BlockConfig
    from headwise.config.model import EncoderConfig as EncoderConfig
    from headwise.config.model import FeedForwardConfig as FeedForwardConfig
    from headwise.config.model import ModelConfig as ModelConfig
    from headwise.config.model import OutputHead as OutputHead
    from headwise.config.model import PatchConfig as PatchConfig
    from headwise.config.position import ALiBi as ALiBi
    from headwise.config.position import T5Bias as T5Bias
    from headwise.config.presets import preset as preset
    from headwise.config.scaling import DynamicNTKScaling as DynamicNTKScaling
    from headwise.config.scaling import LinearScaling as LinearScaling
    from headwise.config.scaling import Llama3Scaling as Llama3Scaling
    from headwise.config.scaling import LongRoPEScaling as LongRoPEScaling
    from headwise.config.scaling import NTKScaling as NTKScaling
    from headwise.config.scaling import YaRNScaling as YaRNScaling
    from headwise.config.vision import C3TRConfig as C3TRConfig
    from headwise.config.vision import PatchEncoderConfig as PatchEncoderConfig
    from headwise.convert.huggingface import from_huggingface as from_huggingface
    from headwise.convert.language_model import language_model_from_huggingface as language_model_from_huggingface
    from headwise.convert.latent import latent_from_huggingface as latent_from_huggingface
    from headwise.convert.seq2seq import seq2seq_from_huggingface as seq2seq_from_huggingface
    from headwise.convert.surgery import merge_kv_heads as merge_kv_heads
    from headwise.convert.surgery import prune_heads as prune_heads
    from headwise.convert.swap import swap as swap
    from headwise.convert.torch_attention import from_torch as from_torch
    from headwise.convert.torch_attention import to_torch as to_torch
    from headwise.cost.allocator import replay_ledger as replay_ledger
    from headwise.cost.memory import predict_ledger as predict_ledger
    from headwise.cost.memory import predict_step as predict_step
    from headwise.cost.running.flop_counter import count_flops as count_flops
    from headwise.cost.running.measure import measure_training_step as measure_training_step
    from headwise.cost.sharding.results import Sharding as Sharding
    from headwise.cost.tracing.trace import trace_step as trace_step
    from headwise.cost.workload import Lora as Lora
    from headwise.cost.workload import Workload as Workload
    from headwise.errors import HeadwiseError as HeadwiseError
    from headwise.inspection.ablation.ablate import ablated as ablated
    from headwise.inspection.ablation.importance import head_importance as head_importance
    from headwise.inspection.ablation.losses import ablation_losses as ablation_losses
    from headwise.inspection.ablation.losses import pruning_curve as pruning_curve
    from headwise.inspection.ablation.pruned import pruned as pruned
    from headwise.inspection.capture.adapters import register_adapter as register_adapter
    from headwise.inspection.capture.readers import open_reader as open_reader
    from headwise.inspection.capture.readers import open_stacks as open_stacks
    from headwise.inspection.detail import Detail as Detail
    from headwise.inspection.exact import read_weights as read_weights
    from headwise.inspection.monitoring.callbacks import AttentionLightningCallback as AttentionLightningCallback
    from headwise.inspection.monitoring.callbacks import AttentionTrainerCallback as AttentionTrainerCallback
    from headwise.inspection.monitoring.monitor import AttentionMonitor as AttentionMonitor
    from headwise.inspection.relations.relation import Relation as Relation
    from headwise.inspection.roles.probe import probe_roles as probe_roles
    from headwise.inspection.rollout import attention_flow as attention_flow
    from headwise.inspection.rollout import attention_rollout as attention_rollout
    from headwise.integrations.transformers_cache import to_transformers_cache as to_transformers_cache
    from headwise.masks.bigbird import BigBird as BigBird
    from headwise.masks.conventions import mask_from_huggingface as mask_from_huggingface
    from headwise.masks.conventions import mask_from_torch as mask_from_torch
    from headwise.masks.data import KeyPadding as KeyPadding
    from headwise.masks.layout import BlockLayout as BlockLayout
    from headwise.masks.patterns import Causal as Causal
    from headwise.masks.patterns import Full as Full
    from headwise.masks.patterns import Mask as Mask
    from headwise.masks.patterns import SlidingWindow as SlidingWindow
    from headwise.masks.sparse import Dilated as Dilated
    from headwise.masks.sparse import GlobalTokens as GlobalTokens
    from headwise.masks.sparse import LocalWindow as LocalWindow
    from headwise.masks.sparse import PrefixLM as PrefixLM
    from headwise.masks.sparse import Strided as Strided
    from headwise.masks.tables import BlockSparse as BlockSparse
    from headwise.masks.tables import Documents as Documents
    from headwise.masks.tables import Explicit as Explicit
    from headwise.nn.beam import beam_search as beam_search
    from headwise.nn.block import Block as Block
    from headwise.nn.build import build as build
    from headwise.nn.c3tr import C3TR as C3TR
    from headwise.nn.classifier import Classifier as Classifier
    from headwise.nn.generation import generate as generate
    from headwise.nn.generation import stream as stream
    from headwise.nn.language_model import LanguageModel as LanguageModel
    from headwise.nn.latent import LatentAttention as LatentAttention
    from headwise.nn.lookup import Lookup as Lookup
    from headwise.nn.multihead import MultiHeadAttention as MultiHeadAttention
    from headwise.nn.sampling import Sampling as Sampling
    from headwise.nn.seq2seq import Seq2Seq as Seq2Seq
    from headwise.nn.torch_multihead import TorchMultiheadAttention as TorchMultiheadAttention
    from headwise.nn.transformer import Transformer as Transformer
    from headwise.nn.vision import PatchEncoder as PatchEncoder
    from headwise.ops.attention import attention as attention
    from headwise.ops.attention import choose_impl as choose_impl
    from headwise.ops.results import AttentionOutput as AttentionOutput
    from headwise.positions.absolute import LearnedPositions as LearnedPositions
    from headwise.positions.absolute import SinusoidalPositions as SinusoidalPositions
    from headwise.positions.bias import ALiBiBias as ALiBiBias
    from headwise.positions.bias import T5RelativeBias as T5RelativeBias
    from headwise.positions.grid import GridRotaryPositions as GridRotaryPositions
    from headwise.positions.grid import grid_positions as grid_positions
    from headwise.positions.rotary import RotaryPositions as RotaryPositions

_MODULE_OF = {
    "ALiBi": "headwise.config.position",
    "ALiBiBias": "headwise.positions.bias",
    "AttentionConfig": "headwise.config.attention",
    "AttentionLightningCallback": "headwise.inspection.monitoring.callbacks",
    "AttentionMonitor": "headwise.inspection.monitoring.monitor",
    "AttentionOutput": "headwise.ops.results",
    "AttentionTrainerCallback": "headwise.inspection.monitoring.callbacks",
    "BigBird": "headwise.masks.bigbird",
    "Block": "headwise.nn.block",
    "BlockConfig": "headwise.config.model",
    "BlockLayout": "headwise.masks.layout",
    "BlockSparse": "headwise.masks.tables",
    "C3TR": "headwise.nn.c3tr",
    "C3TRConfig": "headwise.config.vision",
    "CacheView": "headwise.caches.base",
    "Causal": "headwise.masks.patterns",
    "Classifier": "headwise.nn.classifier",
    "CrossCache": "headwise.caches.slots",
    "Detail": "headwise.inspection.detail",
    "Dilated": "headwise.masks.sparse",
    "Documents": "headwise.masks.tables",
    "DynamicNTKScaling": "headwise.config.scaling",
    "EncoderConfig": "headwise.config.model",
    "Explicit": "headwise.masks.tables",
    "FeedForwardConfig": "headwise.config.model",
    "Full": "headwise.masks.patterns",
    "GlobalTokens": "headwise.masks.sparse",
    "GridRotaryPositions": "headwise.positions.grid",
    "GrowingCache": "headwise.caches.slots",
    "HeadwiseError": "headwise.errors",
    "KVCache": "headwise.caches.base",
    "KeyPadding": "headwise.masks.data",
    "LanguageModel": "headwise.nn.language_model",
    "LatentAttention": "headwise.nn.latent",
    "LatentAttentionConfig": "headwise.config.latent",
    "LearnedPositions": "headwise.positions.absolute",
    "LinearAttentionConfig": "headwise.config.linear",
    "LinearScaling": "headwise.config.scaling",
    "Llama3Scaling": "headwise.config.scaling",
    "LocalWindow": "headwise.masks.sparse",
    "LongRoPEScaling": "headwise.config.scaling",
    "Lookup": "headwise.nn.lookup",
    "Lora": "headwise.cost.workload",
    "Mask": "headwise.masks.patterns",
    "ModelCache": "headwise.caches.model",
    "ModelConfig": "headwise.config.model",
    "MultiHeadAttention": "headwise.nn.multihead",
    "NTKScaling": "headwise.config.scaling",
    "OutputHead": "headwise.config.model",
    "PagedCache": "headwise.caches.paged",
    "PatchConfig": "headwise.config.model",
    "PatchEncoder": "headwise.nn.vision",
    "PatchEncoderConfig": "headwise.config.vision",
    "PrefixLM": "headwise.masks.sparse",
    "QuantizedCache": "headwise.caches.quantized",
    "Relation": "headwise.inspection.relations.relation",
    "RollingCache": "headwise.caches.rolling",
    "Rotary": "headwise.config.attention",
    "RotaryPositions": "headwise.positions.rotary",
    "Sampling": "headwise.nn.sampling",
    "Seq2Seq": "headwise.nn.seq2seq",
    "Sharding": "headwise.cost.sharding.results",
    "SinusoidalPositions": "headwise.positions.absolute",
    "SlidingWindow": "headwise.masks.patterns",
    "StaticCache": "headwise.caches.slots",
    "Strided": "headwise.masks.sparse",
    "T5Bias": "headwise.config.position",
    "T5RelativeBias": "headwise.positions.bias",
    "TorchMultiheadAttention": "headwise.nn.torch_multihead",
    "Transformer": "headwise.nn.transformer",
    "Workload": "headwise.cost.workload",
    "YaRNScaling": "headwise.config.scaling",
    "ablated": "headwise.inspection.ablation.ablate",
    "ablation_losses": "headwise.inspection.ablation.losses",
    "attention": "headwise.ops.attention",
    "attention_flow": "headwise.inspection.rollout",
    "attention_rollout": "headwise.inspection.rollout",
    "beam_search": "headwise.nn.beam",
    "bench": "headwise.api.bench",
    "build": "headwise.nn.build",
    "choose_impl": "headwise.ops.attention",
    "compare": "headwise.api.compare",
    "count": "headwise.api.count",
    "count_flops": "headwise.cost.running.flop_counter",
    "data": "headwise.api.data",
    "explain": "headwise.api.explain",
    "explain_oom": "headwise.api.explain_oom",
    "fit": "headwise.api.fit",
    "from_huggingface": "headwise.convert.huggingface",
    "from_torch": "headwise.convert.torch_attention",
    "generate": "headwise.nn.generation",
    "grid_positions": "headwise.positions.grid",
    "head_importance": "headwise.inspection.ablation.importance",
    "inspect": "headwise.api.inspect",
    "language_model_from_huggingface": "headwise.convert.language_model",
    "latent_from_huggingface": "headwise.convert.latent",
    "make_report": "headwise.api.report",
    "mask_from_huggingface": "headwise.masks.conventions",
    "mask_from_torch": "headwise.masks.conventions",
    "measure_training_step": "headwise.cost.running.measure",
    "merge_kv_heads": "headwise.convert.surgery",
    "oom": "headwise.api.oom",
    "open_reader": "headwise.inspection.capture.readers",
    "open_stacks": "headwise.inspection.capture.readers",
    "predict_ledger": "headwise.cost.memory",
    "predict_step": "headwise.cost.memory",
    "preset": "headwise.config.presets",
    "probe_roles": "headwise.inspection.roles.probe",
    "prune_heads": "headwise.convert.surgery",
    "pruned": "headwise.inspection.ablation.pruned",
    "pruning_curve": "headwise.inspection.ablation.losses",
    "read_weights": "headwise.inspection.exact",
    "register_adapter": "headwise.inspection.capture.adapters",
    "replay_ledger": "headwise.cost.allocator",
    "seq2seq_from_huggingface": "headwise.convert.seq2seq",
    "stream": "headwise.nn.generation",
    "swap": "headwise.convert.swap",
    "to_torch": "headwise.convert.torch_attention",
    "to_transformers_cache": "headwise.integrations.transformers_cache",
    "trace_step": "headwise.cost.tracing.trace",
    "track": "headwise.api.tracking",
}

__all__ = [*sorted(_MODULE_OF), "__version__"]  # noqa: PLE0604  all are strings


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("headwise")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'headwise' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
