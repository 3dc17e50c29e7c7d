"""Published architectures by name, each as its published config.json says and with its source."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from headwise.config.checks import shown
from headwise.config.huggingface import read_config
from headwise.config.model import ModelConfig
from headwise.errors import ConfigError


@dataclass(frozen=True)
class Preset:
    """A published architecture: what its config.json says, in Hugging Face's spelling, and where it was published."""

    config: Mapping[str, object]
    source: str


_BERT = "Devlin et al. 2019, BERT; model card google-bert/"
_GPT2 = "Radford et al. 2019, Language Models are Unsupervised Multitask Learners; model card openai-community/"
_LLAMA_2 = "Touvron et al. 2023, Llama 2; model card meta-llama/"
_LLAMA_3 = "Llama Team 2024, The Llama 3 Herd of Models; model card meta-llama/"


def _gpt2(embed_dim: int, num_layers: int, num_heads: int) -> dict[str, object]:
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": embed_dim,
        "n_layer": num_layers,
        "n_head": num_heads,
    }


PRESETS: dict[str, Preset] = {
    "bert-base": Preset(
        {
            "model_type": "bert",
            "architectures": ["BertModel"],
            "vocab_size": 30522,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "max_position_embeddings": 512,
        },
        f"{_BERT}bert-base-uncased",
    ),
    "bert-large": Preset(
        {
            "model_type": "bert",
            "architectures": ["BertModel"],
            "vocab_size": 30522,
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
            "max_position_embeddings": 512,
        },
        f"{_BERT}bert-large-uncased",
    ),
    "gpt2": Preset(_gpt2(768, 12, 12), f"{_GPT2}gpt2"),
    "gpt2-medium": Preset(_gpt2(1024, 24, 16), f"{_GPT2}gpt2-medium"),
    "gpt2-large": Preset(_gpt2(1280, 36, 20), f"{_GPT2}gpt2-large"),
    "gpt2-xl": Preset(_gpt2(1600, 48, 25), f"{_GPT2}gpt2-xl"),
    "llama-2-7b": Preset(
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "torch_dtype": "float16",
        },
        f"{_LLAMA_2}Llama-2-7b-hf",
    ),
    "llama-2-70b": Preset(
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 32000,
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "torch_dtype": "float16",
        },
        f"{_LLAMA_2}Llama-2-70b-hf",
    ),
    "llama-3-8b": Preset(
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "torch_dtype": "bfloat16",
        },
        f"{_LLAMA_3}Meta-Llama-3-8B",
    ),
    "llama-3-70b": Preset(
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 128256,
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "torch_dtype": "bfloat16",
        },
        f"{_LLAMA_3}Meta-Llama-3-70B",
    ),
    "llama-3.2-1b": Preset(
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        },
        f"{_LLAMA_3}Llama-3.2-1B",
    ),
    "mistral-7b": Preset(
        {
            "model_type": "mistral",
            "architectures": ["MistralForCausalLM"],
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "sliding_window": 4096,
            "torch_dtype": "bfloat16",
        },
        "Jiang et al. 2023, Mistral 7B; model card mistralai/Mistral-7B-v0.1",
    ),
    "mistral-nemo-12b": Preset(
        {
            "model_type": "mistral",
            "architectures": ["MistralForCausalLM"],
            "vocab_size": 131072,
            "hidden_size": 5120,
            "intermediate_size": 14336,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1000000.0,
            "sliding_window": None,
            "torch_dtype": "bfloat16",
        },
        "Mistral AI and NVIDIA 2024; model card mistralai/Mistral-Nemo-Base-2407",
    ),
    "qwen3-4b": Preset(
        {
            "model_type": "qwen3",
            "architectures": ["Qwen3ForCausalLM"],
            "vocab_size": 151936,
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "use_sliding_window": False,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        },
        "Yang et al. 2025, Qwen3 Technical Report; model card Qwen/Qwen3-4B",
    ),
    "gemma-2b": Preset(
        {
            "model_type": "gemma",
            "architectures": ["GemmaForCausalLM"],
            "vocab_size": 256000,
            "hidden_size": 2048,
            "intermediate_size": 16384,
            "num_hidden_layers": 18,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-6,
            "torch_dtype": "bfloat16",
        },
        "Gemma Team 2024, Gemma: Open Models Based on Gemini Research and Technology; model card google/gemma-2b",
    ),
    "mixtral-8x7b": Preset(
        {
            "model_type": "mixtral",
            "architectures": ["MixtralForCausalLM"],
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1000000.0,
            "sliding_window": None,
            "torch_dtype": "bfloat16",
        },
        "Jiang et al. 2024, Mixtral of Experts; model card mistralai/Mixtral-8x7B-v0.1",
    ),
}


def preset(name: str, *, head: bool = False) -> ModelConfig:
    """Return a published architecture.

    Args:
        name: a key of `PRESETS`.
        head: read a bare model as its family's language model, as `read_config` does.

    Raises:
        ConfigError: there is no such preset; the text names the nearest ones.
    """
    if name not in PRESETS:
        near = difflib.get_close_matches(name.lower()[:80], PRESETS, n=3, cutoff=0.5)
        advice = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(PRESETS)}"
        raise ConfigError(f"there is no preset {shown(name)}; {advice}")
    return read_config(PRESETS[name].config, name=name, head=head)
