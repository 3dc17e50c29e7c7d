"""What was at work when memory ran out: read off the lines of a traceback."""

import re
from typing import NamedTuple

from headwise.cost.oom.results import Frame, Operation


class Rule(NamedTuple):
    """What names an operation in a frame: its line of code, its function, or its file."""

    name: str
    code: str
    function: str = r"(?!)"  # matches nothing
    file: str = r"(?!)"

    def matches(self, frame: Frame) -> bool:
        """Whether a frame is at this operation."""
        return (
            re.fullmatch(self.function, _plain_name(frame.function)) is not None
            or re.search(self.code, frame.code or "") is not None
            or re.search(self.file, _posix(frame.file)) is not None
        )


# Of one frame the first that matches. What says no more than "a product" or "a module" (linear, forward) is in no rule,
# so that the frame around it decides.
RULES = (
    Rule(
        "optimizer",
        code=r"optim\w*\.step\(|scaler\.step\(|exp_avg|_multi_tensor_|momentum_buffer",
        function=r"_(?:multi_tensor|single_tensor|fused)_\w+|_init_group",
        file=r"torch/optim/(?!lr_scheduler)|bitsandbytes/optim/|/(?:fused_adam|cpu_adam|stage_1_and_2|stage3)\.py$",
    ),
    Rule(
        "gradients",
        code=r"clip_grad_norm_\(|zero_grad\(|unscale_\(|\.grad\s*=[^=]",
        function=r"clip_grad\w*|_?unscale\w*|zero_grad|\w*reduce_scatter\w*|\w*reduce_grad\w*|_post_backward\w*",
    ),
    Rule(
        "logits",
        code=r"lm_head|cross_entropy|log_softmax|logits\w*\s*=|logits\.|softmax\([^)]*logits|embed_out\(|self\.cls\(",
        function=r"cross_entropy|fixed_cross_entropy|log_softmax|nll_loss|kl_div|\w*LMLoss|\w*compute_logits",
    ),
    Rule("repeated keys", code=r"repeat_kv\(|(?:key|value)\w*\.repeat_interleave", function=r"repeat_kv"),
    Rule(
        "sdpa",
        code=r"scaled_dot_product|flash_attn|flash_attention|memory_efficient_attention|flex_attention",
        function=r"scaled_dot_product\w*|\w*sdpa\w*|\w*flash_att\w+|\w*memory_efficient_\w+|\w*flex_attention\w*",
    ),
    Rule("softmax", code=r"softmax\w*\(", function=r"masked_softmax|softmax_\w+"),
    Rule(
        "attention output",
        code=r"(?:matmul|bmm)\(\s*(?:attn|attention)\w*\s*,\s*v|(?:attn|attention)\w*\s*@\s*v",
    ),
    Rule(
        "scores",
        code=r"baddbmm|(?:attn|attention)_(?:output_)?(?:weights|scores|probs)\w*\s*[-+*/]?=|(?:matmul|bmm)\(\s*q|"
        r"\bq\w*\s*@\s*k|dropout\([^)]*(?:attn|attention)|einsum\([^)]*\bq\w*,\s*k",
    ),
    Rule(
        "cache",
        code=r"(?:key|value|k|v|kv)_cache|past_key_values?\.update\(|torch\.cat\([^)]*past|\.update\(\s*key",
        function=r"\w*kv_?caches?\w*",
        file=r"/(?:cache_utils|kv_cache\w*|cache_engine)\.py$",
    ),
    Rule(
        "mask",
        code=r"causal_mask\w*\s*=|(?:attention|attn)_mask\w*\s*=[^=].*[.(]|torch\.tri[lu]\(",
        function=r"\w*causal_mask\w*|_prepare_4d\w*|get_extended_attention_mask|_expand_mask|create_\w*mask\w*",
    ),
    Rule(
        "rotary",
        code=r"apply_rotary|rotate_half|rotary_emb",
        function=r"apply_rotary\w*|rotate_\w+",
        file=r"/rotary\w*\.py$",
    ),
    Rule(
        "norm",
        code=r"(?:layer|rms|group|batch)_?norm\w*\(|\.\w*norm\d*\(|\.ln_\w+\(",
        function=r"(?:layer|rms|group|batch|instance)_norm",
    ),
    Rule(
        "embedding",
        code=r"embed_tokens\(|embeddings?\(|\.w[tp]e\(|embed_positions\(",
        function=r"embedding(?:_bag)?",
    ),
    Rule(
        "feed-forward",
        code=r"\.mlp\(|gate_proj|gate_up_proj|up_proj|down_proj|feed_forward|\bffn?\b|intermediate\(|\.fc[12]\(|"
        r"c_fc\(|experts?\(|act_fn\(|activation\w*\(|_ff_block\(|linear[12]\(|(?:ge|si|re)lu\(",
        function=r"gelu|silu|relu|glu|swiglu|feed_forward_chunk|_ff_block",
    ),
    Rule(
        "projection",
        code=r"[qkvo]_proj|qkv\w*\s*=|qkv\w*\(|query_key_value|c_attn\(|out_proj|self\.(?:query|key|value)\(|in_proj",
        function=r"_in_projection\w*",
    ),
    Rule(
        "weights",
        code=r"from_pretrained\(|load_state_dict\(|torch\.load\(|param\w*\.(?:to|cuda)\(|"
        r"(?:model|net|module|pipe\w*|encoder|decoder)\.(?:to|cuda|half)\(|torch\.empty\(.*features",
        function=r"from_pretrained|load_state_dict|load_file|_load_\w+|_apply|convert|create_weights|make_layers|"
        r"get_peft_model|set_module_tensor_to_device|dispatch_model|initialize_model|load_model",
    ),
    Rule(
        "backward",
        code=r"\.backward\(|autograd\.grad\(|run_backward\(",
        function=r"backward|_?engine_run_backward|run_backward",
    ),
    Rule(
        "inputs",
        code=r"(?:batch|inputs?|input_ids|images?|tokens?|labels|data|x|tensor)\w*\.(?:to|cuda)\(|pin_memory\(",
        function=r"pin_memory|_pin_memory_loop|send_to_device|default_collate|collate\w*",
    ),
)
OPERATIONS = tuple(rule.name for rule in RULES)

# torch's own files that wrap every module and every product: there only these functions tell whose it is.
_TORCH = re.compile(
    r"(?:^|/)torch/(?:nn/functional|nn/modules/(?:module|linear|activation|dropout)|_tensor|_ops|overrides)\.py$"
)
_TELLING = re.compile(
    r"cross_entropy|log_softmax|scaled_dot_product\w*|(?:layer|rms|group|batch)_norm|embedding|gelu|silu|relu|backward|"
    r"_in_projection\w*|multi_head_attention_forward|_apply|convert|load_state_dict|baddbmm"
)


def find_operation(frames: tuple[Frame, ...]) -> Operation | None:
    """Return what was at work and the line that says so: the innermost that names an operation.

    An error that a device reports late ("CUDA error: out of memory") may name a later line than the one that failed.
    """
    softmax = None
    for frame in reversed(frames):
        function = _plain_name(frame.function)
        if _TORCH.search(_posix(frame.file)) and not _TELLING.fullmatch(function):
            softmax = softmax or (frame if function == "softmax" else None)
            continue
        rule = next((rule for rule in RULES if rule.matches(frame)), None)
        if rule is not None:
            return Operation(name=rule.name, frame=frame)
    return Operation(name="softmax", frame=softmax) if softmax else None


def _plain_name(function: str) -> str:
    """Return a function's name without its class, which IPython writes before it."""
    return function.rpartition(".")[2]


def _posix(path: str) -> str:
    return path.replace("\\", "/")
