"""What claims and figures of the built-in comparisons are quoted from."""

from headwise.experiments.results import Published

ARTICLES = "articles about multi-head attention (docs/claims.md)"

VASWANI_HEADS = Published(
    text="BLEU of 1, 4, 8, 16 and 32 heads: 24.9, 25.5, 25.8, 25.8, 25.4; perplexity 5.29, 5.00, 4.92, 4.91, 5.01",
    source="Vaswani et al. 2017, Attention Is All You Need, table 3 (A)",
    differs="translation, English to German, width 512, 6 + 6 layers, 100,000 steps, one run each",
)
LIU_HEADS = Published(
    text="24 layers of 16 heads are matched by 384 layers of one head: heads make training stable above all",
    source="Liu et al. 2021, Multi-head or Single-head?",
    differs="BERT-large's number of heads in all, far deeper than here",
)
MICHEL_HEADS = Published(
    text="of 96 encoder heads of a trained model 8 matter one by one; most layers can do with one",
    source="Michel et al. 2019, Are Sixteen Heads Really Better than One?",
    differs="heads are taken away after training, where here models are trained with few",
)
BHOJANAPALLI_HEADS = Published(
    text="a head narrower than the text is long cannot put out every pattern of weights",
    source="Bhojanapalli et al. 2020, Low-Rank Bottleneck in Multi-head Attention Models",
    differs="BERT-like models of width 128 to 1024 on masked words",
)
BAHDANAU_LENGTH = Published(
    text="BLEU of a recurrent translator without attention falls beyond 20 to 30 words; with attention it stays to 50",
    source="Bahdanau et al. 2015, Neural Machine Translation by Jointly Learning to Align and Translate, figure 2",
    differs="translation, English to French, one run each",
)
VARIS_LENGTH = Published(
    text="Transformers lose quality on lengths that training had none of, shorter ones and longer ones",
    source="Varis and Bojar 2021, Sequence Length is a Domain",
    differs="translation, English to Czech",
)
PRESS_POSITIONS = Published(
    text="perplexity trained at 512, tested at 512, 1012 and 3512: sinusoidal 20.05, 43.54, 178.97; rotary 20.07, "
    "21.37, 35.54; T5 19.65, 18.79, 22.91; ALiBi 19.73, 18.73, 18.40",
    source="Press et al. 2022, Train Short, Test Long, table 2",
    differs="247 million parameters on WikiText-103; texts side by side, whose first tokens see little",
)
KAZEMNEJAD_POSITIONS = Published(
    text="mean reciprocal rank at twice the trained length: none 0.69, T5 0.55, ALiBi 0.50, rotary 0.33, "
    "sinusoidal 0.22",
    source="Kazemnejad et al. 2023, The Impact of Positional Encoding on Length Generalization in Transformers",
    differs="107 million parameters, causal, ten tasks from 20 to 40, three runs each",
)
ARORA_RECALL = Published(
    text="recall explains 82 % of the gap between attention and gated convolutions in language modelling",
    source="Arora et al. 2023, Zoology",
    differs="models of 70 million to 1.4 billion parameters on real text",
)
