"""A vision model whose first head finds the red patch of a picture by arithmetic; read by tests, never imported.

Every token is `red - blue` of its patch, in one number, and nothing else: grey patches and [CLS] are zero vectors,
which the norm leaves zero, while it turns the red patch into sqrt(11) (12 numbers, one of them not 0). All queries of
head 0 are 12 in the same place, so that the red patch has a score of 12 sqrt(11) / sqrt(4) = 19.9 and all others 0: it
gets 1 / (1 + 15 exp(-19.9)) = 0.99999997 of the weight of 16 tokens. Heads 1 and 2 have scores of 0 and see all alike.
"""

import torch
import transformers

ROWS, COLUMNS, PATCH = 3, 5, 4
RED = (1, 3)  # row and column of the red patch
MEAN, STD = (0.5, 0.25, 0.125), (0.5, 0.5, 0.5)


def make_picture(rows=ROWS):
    """Bytes (3, 4 rows, 20): a grey ramp, a white frame around one patch, and one red patch."""
    grey = torch.linspace(40, 200, COLUMNS * PATCH).expand(rows * PATCH, -1).round()
    picture = grey.repeat(3, 1, 1)
    picture[:, :4, :4] = 255
    picture[:, 1:3, 1:3] = 90
    top, left = RED[0] * PATCH, RED[1] * PATCH
    picture[:, top : top + PATCH, left : left + PATCH] = torch.tensor([230.0, 30.0, 20.0]).view(3, 1, 1)
    return picture.to(torch.uint8)


def make_pixels(picture=None):
    """What the model reads of it: (1, 3, 12, 20), normalised with red and blue alike where the picture is grey."""
    picture = make_picture() if picture is None else picture
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (MEAN, STD))
    return ((picture.float() / 255 - mean) / std)[None]


def make_model(num_layers=1, rows=ROWS, pools=False):
    config = transformers.ViTConfig(
        hidden_size=12,
        num_hidden_layers=num_layers,
        num_attention_heads=3,
        intermediate_size=7,
        image_size=[rows * PATCH, COLUMNS * PATCH],
        patch_size=PATCH,
        layer_norm_eps=1e-6,
    )
    model = transformers.ViTModel(config, add_pooling_layer=pools).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for layer in model.layers:
            layer.layernorm_before.weight.fill_(1.0)
        projection = model.embeddings.patch_embeddings.projection
        # the normalisation takes other means off red and blue: (r - 0.5) / 0.5 - (b - 0.125) / 0.5 = 2 (r - b) - 0.75
        projection.weight[0, 0], projection.weight[0, 2] = 1 / PATCH**2, -1 / PATCH**2
        projection.bias[0] = 0.75
        model.layers[0].attention.q_proj.bias[0] = 12.0
        model.layers[0].attention.k_proj.weight[0, 0] = 1.0
    return model
