"""Published models with an encoder: BERT, T5, ViT."""

from headwise.config.published.preset import Preset

_BERT = "Devlin et al. 2019, BERT; model card google-bert/"

ENCODERS: dict[str, Preset] = {
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
    "t5-small": Preset(
        {
            "model_type": "t5",
            "architectures": ["T5ForConditionalGeneration"],
            "vocab_size": 32128,
            "d_model": 512,
            "d_kv": 64,
            "d_ff": 2048,
            "num_layers": 6,
            "num_heads": 8,
            "relative_attention_num_buckets": 32,
            "n_positions": 512,
        },
        "Raffel et al. 2019, Exploring the Limits of Transfer Learning; model card google-t5/t5-small",
    ),
    "vit-b-16": Preset(
        {
            "model_type": "vit",
            "architectures": ["ViTForImageClassification"],
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "image_size": 224,
            "patch_size": 16,
            "num_channels": 3,
            "num_labels": 1000,
        },
        "Dosovitskiy et al. 2020, An Image is Worth 16x16 Words; model card google/vit-base-patch16-224",
    ),
}
