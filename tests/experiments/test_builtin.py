"""Built-in comparisons compare what they say: one thing differs, parameters are equal where they should be."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch

from headwise.cost.parameters import count_parameters
from headwise.errors import ConfigError
from headwise.experiments.asking import evaluate, loss_of, make_model
from headwise.experiments.builtin.catalogue import QUESTIONS, builtin, questions, quick
from headwise.experiments.builtin.plan import STEP_SECONDS, core_seconds
from headwise.experiments.classification import Classification
from headwise.experiments.examples import IGNORED, Examples
from headwise.experiments.recurrent import RecurrentConfig, count_recurrent_parameters
from headwise.experiments.run import data_seed
from headwise.experiments.training import Training

BUILTIN = {name: builtin(name) for name in QUESTIONS}
PARTS = {part.name: part for parts in BUILTIN.values() for part in parts}
TWO_CORES, MINUTE = 2, 60


def size_of(arm):
    if isinstance(arm.model, RecurrentConfig):
        return count_recurrent_parameters(arm.model)
    return count_parameters(arm.model).total


def differing(one, other, path=""):
    """Name the settings in which two configs differ, at any depth."""
    if dataclasses.is_dataclass(one) and type(one) is type(other):
        names = [field.name for field in dataclasses.fields(one)]
        return {
            found for name in names for found in differing(getattr(one, name), getattr(other, name), f"{path}.{name}")
        }
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return {found for a, b in zip(one, other, strict=True) for found in differing(a, b, path)}
    return set() if one == other else {path.rpartition(".")[2]}


def test_every_built_in_answers_a_question_and_its_parts_have_names_of_their_own():
    assert list(questions()) == [
        *("heads", "reduction", "length", "positions", "attention-kinds", "precision-and-memory", "scale", "stability")
    ]
    assert all(text.endswith("?") for text in questions().values())
    names = [part.name for parts in BUILTIN.values() for part in parts]
    assert len(set(names)) == len(names)
    for name in QUESTIONS:
        assert all(part.name == name or part.name.startswith(f"{name}-") for part in BUILTIN[name])
    with pytest.raises(ConfigError, match=r"must be one of heads, reduction, .*; got 'tails'"):
        builtin("tails")


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_every_part_has_five_seeds_and_an_estimate_of_its_time(part):
    assert len(part.seeds) == 5 and part.claims and part.question.endswith("?")
    assert core_seconds((part,)) > 0


def test_all_eight_take_ninety_minutes_on_two_cores_and_a_quick_one_three():
    every = [part for parts in BUILTIN.values() for part in parts]
    assert set(STEP_SECONDS) == {part.name for part in every}
    assert core_seconds(every) <= 90 * MINUTE * TWO_CORES
    for name in QUESTIONS:
        short = quick(BUILTIN[name])
        assert core_seconds(short) <= 3 * MINUTE * TWO_CORES
        for part, whole in zip(short, BUILTIN[name], strict=True):
            assert len(part.seeds) == 3 and part.learning_rates == ()
            for one, other in zip(part.arms, whole.arms, strict=True):
                recipe, longer = one.recipe or part.recipe, other.recipe or whole.recipe
                assert 1 <= recipe.steps <= longer.steps / 3 and recipe.evaluate_every <= recipe.steps
                assert (recipe.warmup_steps > 0) == (longer.warmup_steps > 0)
                assert dataclasses.replace(one, recipe=other.recipe) == other


def test_the_page_of_results_tells_the_parts_trainings_and_minutes_of_each():
    page = (Path(__file__).parents[2] / "docs" / "results" / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (\d+ \| \d+ \| \d+) \|$", page, re.MULTILINE))
    expected = {}
    for name, parts in BUILTIN.items():
        runs = sum(len(part.arms) * (len(part.seeds) + len(part.learning_rates)) for part in parts)
        expected[name] = f"{len(parts)} | {runs} | {core_seconds(parts) / TWO_CORES / MINUTE:.0f}"
    assert rows == expected


@pytest.mark.parametrize("budget", [{"budget_tokens": 90_000}, {"budget_flops": 9e9}, {"budget_seconds": 9.0}])
def test_a_quick_one_has_a_third_of_the_budget_too(budget):
    ((name, whole),) = budget.items()
    recipe = dataclasses.replace(PARTS["scale"].recipe, **budget)
    (own,) = quick((dataclasses.replace(PARTS["scale"], name="mine", recipe=recipe),))
    assert getattr(own.recipe, name) == pytest.approx(whole / 3)


def test_a_quick_one_of_somebody_elses_has_a_third_of_the_steps():
    (own,) = quick((dataclasses.replace(PARTS["scale"], name="mine"),))
    assert own.recipe.steps == PARTS["scale"].recipe.steps // 3


@pytest.mark.parametrize("name", ["heads-offsets", "heads-recall", "heads-bbc", "heads-r8"])
def test_heads_are_of_one_size_and_differ_in_their_number_alone_but_for_the_deeper_control(name):
    *arms, deeper = PARTS[name].arms
    assert [arm.model.blocks[0].attention.num_heads for arm in arms] == [1, 2, 4, 8, 16, 32]
    assert len({size_of(arm) for arm in arms}) == 1 and size_of(deeper) > size_of(arms[0])
    if name == "heads-offsets":
        assert size_of(arms[0]) == 60_448
    for arm in arms[1:]:
        changed = differing(arms[0].model, arm.model)
        assert changed == {"name", "num_heads", "num_kv_heads", "head_dim", "v_head_dim", "scale"}
        assert arm.recipe is None
    assert deeper.model.blocks[0].attention.num_heads == 1


def test_reduced_heads_are_held_against_full_ones_of_equal_width_and_of_equal_parameters():
    for name in ("reduction-offsets", "reduction-cost"):
        reduced, one, pair, full, narrow = PARTS[name].arms
        attentions = [arm.model.blocks[0].attention for arm in PARTS[name].arms]
        assert [(each.num_heads, each.head_dim) for each in attentions] == [(8, 8), (1, 64), (2, 64), (8, 64), (8, 36)]
        assert size_of(reduced) == size_of(one) < size_of(pair) < size_of(full)
        assert reduced.model.embed_dim == one.model.embed_dim == full.model.embed_dim == 64
        assert narrow.model.embed_dim == attentions[-1].head_dim
    reduced, _, _, _, narrow = PARTS["reduction-offsets"].arms
    assert size_of(reduced) == 60_448 and size_of(narrow) == 60_452
    longer, _, _, _, narrow = PARTS["reduction-cost"].arms
    assert size_of(narrow) == pytest.approx(size_of(longer), rel=0.1)  # its longer table of positions is narrower, too


@pytest.mark.parametrize("name", [name for name in PARTS if name.startswith("length-")])
def test_rivals_by_length_have_the_transformers_parameters_within_a_hundredth(name):
    part = PARTS[name]
    transformer, *rivals = part.arms
    assert [(arm.model.cell, arm.model.attends) for arm in rivals] == [
        *(("gru", False), ("gru", True), ("lstm", False), ("lstm", True))
    ]
    for arm in rivals:
        assert size_of(arm) == pytest.approx(size_of(transformer), rel=0.01)
    if name != "length-r8":
        lengths = part.task.draw(500, seed=0).lengths
        assert int(lengths.max()) == (30 if name.endswith("short") else 40)
        assert int(part.test_task.draw(500, seed=0).lengths.max()) == 40


def test_positions_differ_in_positions_alone_and_both_learned_arms_are_one_model():
    for name in ("positions-language", "positions-copy"):
        by_name = {arm.name: arm for arm in PARTS[name].arms}
        assert by_name["learned, clamped"].model == by_name["learned, interpolated"].model
        assert {arm.lengthen for arm in by_name.values()} == {None, "clamp", "interpolate"}
        for arm in by_name.values():
            changed = differing(by_name["none"].model, arm.model)
            assert changed <= {"position", "position_table_size", "sinusoid_scale"}
            assert bool(changed) == (arm.name != "none")
        lengths = [task.max_len for _, task in PARTS[name].further_tests]
        assert max(lengths) > 7 * PARTS[name].task.max_len


def test_evaluations_by_position_ask_for_the_same_tokens():
    asked = set()
    for _, task in (("1x", PARTS["positions-language"].task), *PARTS["positions-language"].further_tests):
        examples = task.draw(PARTS["positions-language"].num_test, seed=0, split="test")
        asked.add(examples.num_answers)
    assert asked == {2048}


def test_kinds_of_attention_differ_in_mask_or_key_heads_alone():
    for name in (name for name in PARTS if name.startswith("attention-kinds")):
        full, *others = PARTS[name].arms
        for arm in others:
            assert differing(full.model, arm.model) in ({"mask"}, {"num_kv_heads"})
            recipe = arm.recipe or PARTS[name].recipe
            assert differing(PARTS[name].recipe, recipe) in (set(), {"impl"})


def test_precision_and_stability_train_one_model_in_several_ways():
    precision = PARTS["precision-and-memory"]
    assert len({arm.model for arm in precision.arms}) == 1
    assert len({arm.recipe for arm in precision.arms}) == len(precision.arms)
    for arm in precision.arms:
        assert differing(precision.recipe, arm.recipe) <= {"impl", "precision", "checkpoint"}
    stable = PARTS["stability"]
    first = stable.arms[0]
    changes = {
        arm.name: differing(first.model, arm.model) | differing(stable.recipe, arm.recipe or stable.recipe)
        for arm in stable.arms
    }
    assert changes == {
        "all on": set(),
        "no warmup": {"warmup_steps"},
        "no decay": {"schedule"},
        "no dropout": {"dropout_p"},
        "post-norm": {"norm_placement", "final_norm"},
        "post-norm, no warmup": {"norm_placement", "final_norm", "warmup_steps"},
    }


def test_scale_pairs_arms_that_differ_in_the_scale_alone():
    arms = PARTS["scale"].arms
    for scaled, bare in zip(arms[::2], arms[1::2], strict=True):
        assert differing(scaled.model, bare.model) == {"scale"}
        attention = scaled.model.blocks[0].attention
        assert attention.scale == attention.head_dim**-0.5 and bare.model.blocks[0].attention.scale == 1
    assert [arm.model.blocks[0].attention.head_dim for arm in arms[::2]] == [8, 16, 32, 64, 128, 256]


def training_of(part, arm, recipe, batch_of):
    torch.manual_seed(0)
    module = make_model(arm.model, checkpoint=recipe.checkpoint, impl=recipe.impl)
    return Training(module, recipe, loss=lambda module, batch: loss_of(module, batch, part.task), batch_of=batch_of)


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_every_arm_takes_two_steps(part):
    for arm in part.arms:
        recipe = dataclasses.replace(arm.recipe or part.recipe, steps=2, batch_size=1)
        training = training_of(part, arm, recipe, lambda step: drawn(part.task, 1, step))
        assert sum(one.numel() for one in training.module.parameters()) == size_of(arm)
        assert all(training.take_step().finite for _ in range(2))


def drawn(task, count, seed):
    """Texts of a task; of a corpus that must be fetched, texts of its shape."""
    if not isinstance(task, Classification):
        return task.draw(count, seed=seed)
    ids = torch.randint(task.vocab_size, (count, 7), generator=torch.Generator().manual_seed(seed))
    targets = torch.full((count, 7, 1), IGNORED)
    targets[:, -1] = seed % task.num_classes
    return Examples(ids, targets, torch.full((count,), 7), torch.ones(count, 7, dtype=torch.bool))


@pytest.mark.parametrize(("name", "low", "high"), [("1 head", 0.0, 0.2), ("8 heads", 0.7, 1.0)])
def test_one_head_cannot_read_three_places_and_eight_can(name, low, high):
    """The pilot in small: a quarter of the steps of half the texts."""
    part = PARTS["heads-offsets"]
    (arm,) = (arm for arm in part.arms if arm.name == name)
    recipe = dataclasses.replace(part.recipe, steps=150, batch_size=32)
    training = training_of(
        part, arm, recipe, lambda step: part.task.draw(recipe.batch_size, seed=data_seed("train", 0, step))
    )
    for _ in range(recipe.steps):
        training.take_step()
    assert low <= evaluate(training.module, part.task.draw(256, seed=1), part.task)["exact"] <= high
