"""Published dense decoders, first part: GPT-2 and the Llamas."""

from headwise.config.published.preset import Preset

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


LLAMAS: dict[str, Preset] = {
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
    "llama-2-13b": Preset(
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 32000,
            "hidden_size": 5120,
            "intermediate_size": 13824,
            "num_hidden_layers": 40,
            "num_attention_heads": 40,
            "num_key_value_heads": 40,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-05,
            "torch_dtype": "float16",
        },
        f"{_LLAMA_2}Llama-2-13b-hf",
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
    "llama-3.2-3b": Preset(
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 128256,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 28,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-05,
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
        f"{_LLAMA_3}Llama-3.2-3B",
    ),
}
