"""A made-up comparison: arms that are better, alike and worse, and one that a seed has no metric of."""

import dataclasses

from headwise.experiments.claim_tests import ClaimTest, decide_claims
from headwise.experiments.intervals import paired_difference, seed_values
from headwise.experiments.results import ArmResult, ComparisonResult, LinearBaseline, Published
from headwise.experiments.run_result import Run

SEEDS = (0, 1, 2, 3, 5)
WOBBLE = (0.01, -0.02, 0.013, 0.004, -0.007)  # of the seeds
OTHER_WOBBLE = (-0.011, 0.017, 0.002, -0.003, 0.007)
BUCKETS = ("<=10", "11-20", ">20")
FURTHER = {"2x": 64, "4x": 128, "8x": 256}


def by_name(each):
    names = dict.fromkeys(name for metrics in each for name in metrics)
    return {name: seed_values([metrics.get(name) for metrics in each]) for name in names}


def by_place(each):
    return {place: by_name([run[place] for run in each]) for place in each[0]}


def make_run(seed, level, wobble, *, speed=20.0, test=True):
    accuracy = level + wobble
    curve = tuple(
        {
            "step": step,
            "train_loss": 3.4 - 3.1 * accuracy * step / 500 + 0.02 * wobble,
            "validation_loss": 3.5 - 3.0 * accuracy * step / 500 + wobble,
            "validation_accuracy": accuracy * step / 500,
        }
        for step in (100, 200, 300, 400, 500)
    )
    metrics = {"loss": 3.5 - 3 * accuracy, "accuracy": accuracy, "exact": accuracy**3, "whole": accuracy**9}
    return Run(
        seed=seed,
        num_parameters=60_448,
        steps=500,
        seconds=500 / speed,
        best_step=500,
        clipped_share=0.31,
        num_bad=0,
        test=metrics if test else {},
        test_by_length={name: {"accuracy": accuracy - 0.1 * place} for place, name in enumerate(BUCKETS)},
        curve=curve,
        train_loss_end=curve[-1]["train_loss"],
        validation_loss_end=curve[-1]["validation_loss"],
        validation_loss_best=curve[-1]["validation_loss"],
        steps_per_second=speed * (1 + wobble),
        peak_bytes=3 * 2**20,
        seconds_to={"0.5": 9.5 + wobble},
        further={name: {"accuracy": accuracy / (1 + place)} for place, name in enumerate(FURTHER)},
    )


def make_arm(name, level, wobbles=WOBBLE, *, metric="accuracy", speed=20.0, missing=(), seeds=SEEDS):
    runs = tuple(
        make_run(seed, level, wobble, speed=speed, test=seed not in missing)
        for seed, wobble in zip(seeds, wobbles, strict=False)
    )
    metrics = by_name([run.test for run in runs])
    return ArmResult(
        name=name,
        about="1 layer, width 48, 8 heads of 6",
        learning_rate=0.002,
        rates_tried={"0.001": 0.9, "0.002": 0.7, "0.004": None},
        runs=runs,
        num_parameters=60_448,
        forward_flops=3_870_720,
        mean=metrics[metric].mean,
        metrics=metrics,
        by_length=by_place([run.test_by_length for run in runs]),
        length_counts=dict(zip(BUCKETS, (1030, 1000, 530), strict=True)),
        further=by_place([run.further for run in runs]),
        numbers={
            one: seed_values([getattr(run, one) for run in runs])
            for one in ("steps_per_second", "peak_bytes", "gap", "seconds")
        }
        | {"seconds_to_0.5": seed_values([run.seconds_to["0.5"] for run in runs])},
    )


CLAIMS = (
    ClaimTest(text="Eight heads read more places than one", source="an article", arm="8 heads", other="1 head"),
    ClaimTest(
        text="Sixteen heads are worse than eight", source="an article", arm="16 heads", other="8 heads", expects="lower"
    ),
    ClaimTest(
        text="Eight heads train slower than one",
        source="another article",
        arm="8 heads",
        other="1 head",
        expects="higher",
        quantity="steps_per_second",
    ),
    ClaimTest(
        text="Eight heads lose less on long texts",
        source="another article",
        arm="8 heads",
        other="1 head, 3 layers",
        where=">20",
        minus="<=10",
    ),
)


def make_baseline(accuracy):
    """Make a linear model that is right so often, and by a tenth less on long texts."""

    def metrics(share, texts):
        return {"accuracy": share, "macro_f1": share - 0.02, "texts": float(texts)}

    return LinearBaseline(
        corpus="bbc",
        max_tokens=256,
        inverse_penalty=100.0,
        num_features=6788,
        num_parameters=33_945,
        seconds=12.34,
        validation=metrics(accuracy - 0.01, 200),
        test=metrics(accuracy, 512),
        test_by_length={"<=10": metrics(accuracy, 206), ">20": metrics(accuracy - 0.1, 106)},
    )


def with_predictions(result, gap=-0.0042):
    """Put a predicted peak, so far off, beside every measured one but those of the last arm."""

    def foretold(arm):
        peaks = [peak * (1 + gap) for peak in arm.numbers["peak_bytes"].known]
        own = {"predicted_peak_bytes": seed_values(peaks), "peak_gap": seed_values([gap] * len(peaks))}
        return dataclasses.replace(arm, numbers={**arm.numbers, **own})

    return dataclasses.replace(result, arms=(*map(foretold, result.arms[:-1]), result.arms[-1]))


def make_comparison(*, num_seeds=5, num_arms=4, lost=False, **changes):
    """Make a comparison of four arms or more; `lost`: one seed of the last has no test."""
    seeds = SEEDS[:num_seeds]
    arms = [
        make_arm("1 head", 0.31, seeds=seeds),
        make_arm("8 heads", 0.93, OTHER_WOBBLE, speed=15.0, seeds=seeds),
        make_arm("16 heads", 0.93, WOBBLE, speed=13.0, seeds=seeds),
        make_arm("1 head, 3 layers", 0.64, OTHER_WOBBLE, missing=(1,) if lost else (), seeds=seeds),
    ]
    arms += [make_arm(f"arm {number}", 0.3 + 0.04 * number, WOBBLE[::-1], seeds=seeds) for number in range(4, num_arms)]
    fields = {
        "name": "heads",
        "question": "Do more heads read more places?",
        "metric": "accuracy",
        "seeds": seeds,
        "arms": tuple(arms),
        "differences": tuple(
            paired_difference(
                arm.metrics["accuracy"].known,
                arms[0].metrics["accuracy"].known,
                metric="accuracy",
                arm=arm.name,
                other=arms[0].name,
            )
            for arm in arms[1:]
            if arm.mean is not None
        ),
        "claims": decide_claims(CLAIMS, arms, "accuracy"),
        "published": (
            Published(
                text="8 heads 25.8 BLEU, 1 head 24.9",
                source="Vaswani et al. 2017, table 3 (A)",
                differs="translation, a larger model, one seed",
            ),
        ),
        "test_lengths": {"training": 32, "test": 32, **FURTHER},
        "setup": {
            "task": {"MultiOffsetCopy": {"vocab_size": 32, "seq_len": 32, "offsets": [1, 3, 7]}},
            "test_task": None,
            "num_validation": 256,
            "num_test": 512,
            "buckets": [10, 20],
            "further_tests": [],
            "recipe": {"Recipe": {"steps": 500, "batch_size": 64, "learning_rate": 0.002, "warmup_steps": 100}},
            "learning_rates": [0.001, 0.002, 0.004],
        },
        "environment": {"python": "3.11.7", "torch": "2.13.0", "threads": 1, "runs_at_once": 2, "device": "cpu"},
        "when": "2026-03-07",
        "folder": "headwise-compare/heads",
        "notes": ("A run of 1 head was interrupted.",),
    }
    return ComparisonResult(**{**fields, **changes})
