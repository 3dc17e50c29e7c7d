"""A run is the same for the same seed, whether or not it was killed, and its test is of the best state."""

import dataclasses
import errno
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn.functional import cross_entropy

import headwise
from headwise.config.model import ModelConfig
from headwise.errors import ConfigError, OutputError
from headwise.experiments import run as run_module
from headwise.experiments.examples import Examples, TokenTask
from headwise.experiments.language_modelling import LanguageModelling
from headwise.experiments.models import transformer_for
from headwise.experiments.recipe import Recipe
from headwise.experiments.recurrent import RecurrentConfig
from headwise.experiments.run import RunSettings, data_seed, evaluate, make_model, run, scores_of
from headwise.experiments.run_folder import EVENTS, METRICS, RUN, STATE, RunFolder
from headwise.experiments.run_result import Run
from headwise.experiments.sequence_tasks import AssociativeRecall, Induction, MultiOffsetCopy, Transduction

RECIPE = Recipe(steps=11, batch_size=6, learning_rate=5e-3, warmup_steps=3, evaluate_every=4)


def transformer(task, *, num_heads, width=12, dropout_p=0.0):
    """Return one causal block with learned positions, as of the research's pilot."""
    block = headwise.BlockConfig(
        attention=headwise.AttentionConfig(
            embed_dim=width, num_heads=num_heads, mask=headwise.Causal(), projection_bias=True, dropout_p=dropout_p
        ),
        feed_forward=headwise.FeedForwardConfig(embed_dim=width, hidden_dim=4 * width, bias=True),
    )
    return ModelConfig(
        name="pilot",
        model_type="headwise",
        kind="decoder",
        embed_dim=width,
        vocab_size=task.vocab_size,
        max_positions=task.max_len,
        position_table_size=task.max_len,
        blocks=(block,),
        final_norm=True,
        head=headwise.OutputHead(
            kind="language_model", num_outputs=task.num_answers * task.num_classes, bias=True, tied=False
        ),
    )


TASK = MultiOffsetCopy(vocab_size=5, seq_len=9, offsets=(1, 3))
SETTINGS = RunSettings(
    task=TASK, model=transformer(TASK, num_heads=3, dropout_p=0.2), recipe=RECIPE, num_validation=13, num_test=17
)
OFTEN = dataclasses.replace(SETTINGS, recipe=dataclasses.replace(RECIPE, steps=31, evaluate_every=1))


@pytest.mark.parametrize("num_heads", [1, 8])
def test_the_pilot_has_as_many_parameters_with_one_head_and_with_eight(num_heads):
    task = MultiOffsetCopy()
    model = make_model(transformer(task, num_heads=num_heads, width=64))
    assert sum(one.numel() for one in model.parameters()) == 60_448


def test_a_run_depends_on_its_seed_alone(tmp_path):
    torch.manual_seed(7)
    first = run(SETTINGS, tmp_path / "a")
    torch.manual_seed(8)
    second = run(SETTINGS, tmp_path / "b")
    assert first.without_measurements() == second.without_measurements()
    other = run(dataclasses.replace(SETTINGS, seed=1), tmp_path / "c")
    assert other.curve[0]["train_loss"] != first.curve[0]["train_loss"]
    assert [record["step"] for record in first.curve] == [4, 8, 11]
    assert run(SETTINGS, tmp_path / "a") == first  # done: read, not run again


def test_arms_of_one_seed_see_the_same_batches():
    drawn = {split: data_seed(split, 3, 5) for split in ("train", "validation", "test")}
    assert len(set(drawn.values())) == 3
    assert data_seed("train", 3, 5) == drawn["train"] and data_seed("train", 3, 6) != drawn["train"]


def test_a_run_that_was_killed_goes_on_to_the_same_numbers(tmp_path):
    straight = run(SETTINGS, tmp_path / "straight")

    def stop(done, total):
        if done == 6:  # after the state of step 4, which is what it goes on from
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(SETTINGS, tmp_path / "stopped", progress=stop)
    seen = []
    again = run(SETTINGS, tmp_path / "stopped", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(step, 11) for step in range(5, 12)]
    assert again.without_measurements() == straight.without_measurements()


def test_a_process_killed_at_a_random_moment_goes_on_to_the_same_numbers(tmp_path):
    """A look a step, so that nearly every moment is one at which files are written; each time some more are done."""
    script = (
        "import sys, torch; torch.set_num_threads(1); sys.path.insert(0, sys.argv[1]);"
        "from test_run import OFTEN, run; run(OFTEN, sys.argv[2])"
    )
    place = tmp_path / "killed"
    lines = place / METRICS
    for wanted, wait in ((3, 0.003), (9, 0.008)):
        process = subprocess.Popen([sys.executable, "-c", script, os.path.dirname(__file__), str(place)])  # noqa: PTH120
        while process.poll() is None and not (lines.exists() and lines.read_text().count("\n") >= wanted):
            time.sleep(0.001)
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL  # it was at work still
        RunFolder(place, OFTEN.to_dict())  # what stands can be read, all of it
    step = RunFolder(place, OFTEN.to_dict()).load()[1]["step"]
    assert step >= 8  # at most the last interval is lost
    straight = run(OFTEN, tmp_path / "straight")
    seen = []
    again = run(OFTEN, place, progress=lambda done, total: seen.append(done))
    assert again.without_measurements() == straight.without_measurements()
    assert seen == list(range(step + 1, 32))
    written = json.loads((place / RUN).read_text())
    assert [each["torch"] for each in written["resumed"]] == [torch.__version__] * len(written["resumed"])
    assert len(written["resumed"]) >= 2
    events = EventAccumulator(str(place / EVENTS))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(range(1, 32))


def test_the_state_that_is_tested_is_the_one_with_the_lowest_validation_loss(tmp_path, monkeypatch):
    """With a rate that drives the model apart after its first look, the first look's state is the one."""
    recipe = dataclasses.replace(RECIPE, steps=12, learning_rate=3.0, warmup_steps=8, clip_norm=None)
    settings = dataclasses.replace(SETTINGS, recipe=recipe, model=transformer(TASK, num_heads=2))
    result = run(settings, tmp_path)
    losses = {record["step"]: record["validation_loss"] for record in result.curve}
    assert result.best_step == min(losses, key=losses.get)
    assert losses[12] > losses[result.best_step]
    module = make_model(settings.model)
    recorded = settings.task.draw(17, seed=data_seed("test", 0))
    best, _ = RunFolder(tmp_path, settings.to_dict()).load_best()
    module.load_state_dict({name.removeprefix("module."): tensor for name, tensor in best.items()})
    assert evaluate(module, recorded, TASK) == result.test


def test_lengths_are_told_apart_and_longer_texts_may_be_tested(tmp_path):
    task = Transduction(change="reverse", min_len=1, max_tokens=3, vocab_size=9)
    longer = dataclasses.replace(task, max_tokens=5)
    model = RecurrentConfig(cell="gru", vocab_size=9, embed_dim=7, num_outputs=9, attends=True)
    settings = RunSettings(
        task=task, model=model, recipe=RECIPE, num_validation=5, num_test=61, test_task=longer, buckets=(2, 4)
    )
    result = run(settings, tmp_path)
    assert set(result.test_by_length) == {"<=2", "3-4", ">4"}
    lengths = longer.draw(61, seed=data_seed("test", 0)).lengths
    # an answer a token and one for the end: the mean over buckets, each with its answers
    shares = {"<=2": lengths <= 2, "3-4": (lengths > 2) & (lengths <= 4), ">4": lengths > 4}
    answers = {name: int((lengths[which] + 1).sum()) for name, which in shares.items()}
    mean = sum(answers[name] * result.test_by_length[name]["loss"] for name in answers) / sum(answers.values())
    assert mean == pytest.approx(result.test["loss"], rel=1e-5)


def test_settings_that_differ_in_the_kind_of_one_part_alone_are_others(tmp_path):
    """A mask without numbers differs from another in its name only; so does a position."""
    described = []
    for mask in (headwise.Causal(), headwise.Full()):
        for position in (None, headwise.Rotary(), headwise.ALiBi()):
            attention = headwise.AttentionConfig(embed_dim=12, num_heads=3, mask=mask, position=position)
            block = dataclasses.replace(SETTINGS.model.blocks[0], attention=attention)
            model = dataclasses.replace(SETTINGS.model, blocks=(block,))
            described.append(dataclasses.replace(SETTINGS, model=model).to_dict())
    assert all(one != other for number, one in enumerate(described) for other in described[:number])
    assert json.loads(json.dumps(described)) == described


def test_the_callers_random_numbers_go_on_as_if_nothing_had_run(tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(5)
    torch.manual_seed(3)
    run(SETTINGS, tmp_path)
    assert torch.equal(torch.rand(5), expected)


def test_a_stopped_run_counts_the_seconds_since_its_last_look(tmp_path):
    recipe = dataclasses.replace(RECIPE, learning_rate=1e30, warmup_steps=0, clip_norm=None, max_bad_steps=2)
    result = run(dataclasses.replace(SETTINGS, recipe=recipe), tmp_path)
    assert result.stopped is not None and result.curve == () and result.seconds > 0


def test_a_run_writes_what_it_did_and_refuses_the_folder_of_another(tmp_path):
    result = run(SETTINGS, tmp_path)
    written = json.loads((tmp_path / "run.json").read_text())
    assert written["settings"]["task"] == {"MultiOffsetCopy": {"vocab_size": 5, "seq_len": 9, "offsets": [1, 3]}}
    assert written["settings"]["model"]["ModelConfig"]["embed_dim"] == 12
    assert json.loads((tmp_path / METRICS).read_text().splitlines()[-1])["step"] == 11
    assert (tmp_path / STATE).exists()
    assert result.to_dict()["test"]["accuracy"] == result.test["accuracy"]
    assert 0 <= result.clipped_share <= 1 and math.isfinite(result.test["loss"])
    with pytest.raises(OutputError, match="other settings"):
        run(dataclasses.replace(SETTINGS, seed=5), tmp_path)


def test_further_tests_are_taken_once_and_longer_tables_only_where_a_way_is_given(tmp_path, monkeypatch):
    longer = dataclasses.replace(TASK, seq_len=14)
    tests = (("same", TASK), ("longer", longer))
    settings = dataclasses.replace(SETTINGS, further_tests=tests, num_test=7)
    drawn = []
    draw = MultiOffsetCopy.draw

    def watched(task, num_examples, *, seed, split="train"):
        drawn.append((task.seq_len, split))
        return draw(task, num_examples, seed=seed, split=split)

    monkeypatch.setattr(MultiOffsetCopy, "draw", watched)
    result = run(settings, tmp_path / "none")
    # one batch a step, and one each for the peak and for the loss on training texts
    assert [drawn.count((9, split)) for split in ("train", "validation", "test")] == [11 + 2, 1, 2]
    assert result.further["same"] == result.test and result.further["longer"] == {}
    assert set(result.further_notes) == {"longer"}
    assert "texts have up to 14 tokens, and the learned position table has 9 rows" in result.further_notes["longer"]
    stretched = run(dataclasses.replace(settings, lengthen="interpolate"), tmp_path / "stretched")
    assert set(stretched.further["longer"]) == set(result.test) and stretched.further_notes == {}
    assert stretched.test == result.test  # of the table as it was trained
    own = run(dataclasses.replace(SETTINGS, test_task=longer), tmp_path / "own")
    assert own.test == {} and set(own.further_notes) == {"test"}
    assert run(dataclasses.replace(SETTINGS, test_task=longer), tmp_path / "own") == own


@pytest.mark.parametrize("names", [("test",), ("a", "a"), ("",)])
def test_further_tests_need_names_of_their_own(names):
    with pytest.raises(ConfigError, match="further test"):
        dataclasses.replace(SETTINGS, further_tests=tuple((name, TASK) for name in names))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Same(TokenTask):
    """Say every token again."""

    vocab_size: int = 11
    seq_len: int = 5

    def draw(self, num_examples, *, seed, split="train"):
        ids = torch.randint(0, 11, (num_examples, 5), generator=torch.Generator().manual_seed(seed))
        return Examples(ids, ids.unsqueeze(-1), torch.full((num_examples,), 5))


def test_what_a_run_measures_is_what_its_curve_says(tmp_path):
    easy = Same()
    recipe = dataclasses.replace(RECIPE, steps=60, learning_rate=0.03, evaluate_every=1)
    settings = dataclasses.replace(SETTINGS, task=easy, model=transformer(easy, num_heads=1), recipe=recipe)
    result = run(settings, tmp_path)
    reached = {}
    for record in result.curve:
        for bound in ("0.5", "0.9", "0.99"):
            if record["validation_accuracy"] >= float(bound):
                reached.setdefault(bound, record["step"])
    assert len(reached) == 3 and set(result.seconds_to) == set(reached)
    assert 0 < result.seconds_to["0.5"] <= result.seconds_to["0.9"] <= result.seconds_to["0.99"] < result.seconds
    # steps later, seconds later
    for one, other in (("0.5", "0.9"), ("0.9", "0.99")):
        assert (reached[one] < reached[other]) == (result.seconds_to[one] < result.seconds_to[other])
    assert result.steps_per_second == pytest.approx(60 / result.seconds)
    assert result.validation_loss_best == min(record["validation_loss"] for record in result.curve)
    assert result.validation_loss_end == result.curve[-1]["validation_loss"]
    module = make_model(settings.model)
    state, _ = RunFolder(tmp_path, settings.to_dict()).load()
    for name, parameter in module.named_parameters():
        parameter.data.copy_(state[f"module.{name}"])
    texts = easy.draw(13, seed=data_seed("train sample", 0))
    assert result.train_loss_end == evaluate(module, texts, easy)["loss"]
    assert result.gap == result.validation_loss_end - result.train_loss_end
    # at the least a gradient of every parameter
    assert result.peak_bytes > 4 * result.num_parameters


def test_a_budget_of_seconds_ends_at_a_look_and_says_so(tmp_path):
    recipe = dataclasses.replace(RECIPE, steps=10**6, evaluate_every=3, budget_seconds=1e-4)
    result = run(dataclasses.replace(SETTINGS, recipe=recipe), tmp_path)
    assert result.steps == 3 and result.stopped is None and result.test["accuracy"] >= 0
    assert result.notes == ("The budget of 0.0001 s was spent after step 3: not to be repeated.",)
    (tmp_path / "result.json").unlink()  # killed before its test: it does not train on
    assert run(dataclasses.replace(SETTINGS, recipe=recipe), tmp_path).steps == 3
    tokens = dataclasses.replace(RECIPE, budget_tokens=5 * 6 * 9)
    assert run(dataclasses.replace(SETTINGS, recipe=tokens), tmp_path / "tokens").steps == 5


def test_checkpointing_changes_no_number_and_takes_less(tmp_path):
    """Twenty layers: what one of them holds within is a small part of what all of them would keep."""
    model = dataclasses.replace(SETTINGS.model, blocks=transformer(TASK, num_heads=3).blocks * 20)
    recipe = dataclasses.replace(RECIPE, steps=3, batch_size=32)
    kept = run(dataclasses.replace(SETTINGS, model=model, recipe=recipe), tmp_path / "kept")
    again = dataclasses.replace(recipe, checkpoint="full")
    computed = run(dataclasses.replace(SETTINGS, model=model, recipe=again), tmp_path / "computed")
    assert computed.without_measurements() == kept.without_measurements()
    assert computed.peak_bytes < kept.peak_bytes / 2


def test_a_disk_that_is_full_is_told_in_one_line_and_nothing_is_lost(tmp_path):
    """No file may grow beyond 8 KiB, less than the state: the system says so as it says of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 * 1024, before[1]))
    try:
        with pytest.raises(OutputError, match="cannot write") as told:
            run(SETTINGS, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(told.value) and "File too large" in str(told.value)
    assert not list(tmp_path.glob(".headwise-*"))
    assert run(SETTINGS, tmp_path).steps == 11


def test_a_result_with_numbers_that_are_none_is_read_as_it_was_written(tmp_path):
    folder = RunFolder(tmp_path, SETTINGS.to_dict())
    curve = ({"step": 1, "train_loss": math.nan},)
    result = Run(
        seed=0, num_parameters=1, steps=1, seconds=1.0, best_step=0, clipped_share=0.0, num_bad=1,
        test={"loss": math.nan}, curve=curve, seconds_to={"0.5": 0.1}, notes=("a note",), further={"a": {}},
    )  # fmt: skip
    assert folder.result() is None
    folder.write_result(result)
    found = folder.result()
    assert math.isnan(found.test["loss"]) and math.isnan(found.curve[0]["train_loss"])
    assert dataclasses.replace(found, test={}, curve=()) == dataclasses.replace(result, test={}, curve=())
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(OutputError, match="no result of a run"):
        folder.result()


def test_a_mask_that_sees_the_answers_is_refused():
    """Where answers are the next tokens a mask that reads later ones gives them away, whichever test it is in."""
    copy = Transduction(max_tokens=3, vocab_size=9)
    ahead = (copy, Induction(num_tokens=3, vocab_size=9), LanguageModelling(seq_len=8, vocab_size=257))
    recall = AssociativeRecall(num_pairs=2, seq_len=8, vocab_size=9)  # its answers stand earlier, behind their keys
    for mask, sees in (("causal", False), ("window:2", False), ("full", True), ("longformer:2:1", True)):

        def settings(task, mask=mask, **more):
            model = transformer_for(task, embed_dim=8, num_heads=2, mask=mask)
            return RunSettings(task=task, model=model, recipe=RECIPE, **more)

        for task in ahead:
            with pytest.raises(ConfigError, match="asks for the next token") if sees else nullcontext():
                settings(task)
        settings(recall)
        with pytest.raises(ConfigError, match="asks for the next token") if sees else nullcontext():
            settings(recall, further_tests=(("far", copy),))


def test_a_warmup_that_was_not_over_is_told(tmp_path):
    recipe = dataclasses.replace(RECIPE, steps=2, warmup_steps=3, evaluate_every=2)
    settings = dataclasses.replace(SETTINGS, recipe=recipe)
    (note,) = run(settings, tmp_path / "short").notes
    assert note == "The warmup of 3 steps was not over after 2: the learning rate never reached 0.005."


def test_no_text_of_a_run_is_drawn_for_two_purposes(tmp_path, monkeypatch):
    """Steps, validation, the sample for the gap and tests have seeds of their own: nothing chosen on is tested on."""
    drawn = []
    draw = MultiOffsetCopy.draw

    def watched(self, num_examples, *, seed, split="train"):
        drawn.append((seed, split))
        return draw(self, num_examples, seed=seed, split=split)

    monkeypatch.setattr(MultiOffsetCopy, "draw", watched)
    run(SETTINGS, tmp_path / "run")
    steps = [data_seed("train", SETTINGS.seed, step) for step in range(SETTINGS.recipe.steps)]
    purposes = {"validation": "validation", "train sample": "train", "test": "test"}
    others = [(data_seed(name, SETTINGS.seed), split) for name, split in purposes.items()]
    assert set(drawn) == {*((seed, "train") for seed in steps), *others}
    assert len({seed for seed, _ in drawn}) == len(steps) + 3


def test_a_recipes_smoothing_and_way_of_attention_reach_the_training(tmp_path):
    """Smoothing raises the loss of the very first steps; kept scores take more memory than fused attention."""
    task = MultiOffsetCopy(vocab_size=5, seq_len=64, offsets=(1, 3))
    plain = dataclasses.replace(
        SETTINGS,
        task=task,
        model=transformer_for(task, embed_dim=16, num_heads=8),
        recipe=dataclasses.replace(RECIPE, steps=1, warmup_steps=0, evaluate_every=1, impl="sdpa"),
    )
    found = {}
    for name, change in (("plain", {}), ("smooth", {"label_smoothing": 0.3}), ("kept", {"impl": "reference"})):
        recipe = dataclasses.replace(plain.recipe, **change)
        found[name] = run(dataclasses.replace(plain, recipe=recipe), tmp_path / name)
    torch.manual_seed(plain.seed)
    batch = task.draw(RECIPE.batch_size, seed=data_seed("train", plain.seed, 0))
    scores = scores_of(make_model(plain.model), batch, task)
    for name, smoothing in (("plain", 0.0), ("smooth", 0.3)):
        expected = cross_entropy(scores.flatten(0, -2), batch.targets.flatten(), label_smoothing=smoothing)
        # float32 sums of a few hundred terms
        assert found[name].curve[0]["train_loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert found["smooth"].curve[0]["train_loss"] != pytest.approx(found["plain"].curve[0]["train_loss"], rel=1e-4)
    assert found["kept"].peak_bytes > found["plain"].peak_bytes


def test_seconds_are_those_of_training_without_looks(tmp_path, monkeypatch):
    """By a clock that moves as it is read: as a stretch of steps begins and as it ends, of which there are three."""
    ticks = iter(range(10**6))
    monkeypatch.setattr(run_module, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    monkeypatch.setattr(run_module, "evaluate", lambda *arguments: [next(ticks), evaluate(*arguments)][1])
    found = run(SETTINGS, tmp_path / "run")
    assert len(found.curve) == found.seconds == 3
    assert found.steps_per_second == 11 / 3


def test_a_model_that_does_not_fit_a_task_is_refused():
    task = MultiOffsetCopy(vocab_size=9, seq_len=8, offsets=(1, 3))
    fits = transformer_for(task, embed_dim=8, num_heads=2)
    RunSettings(task=task, model=fits, recipe=RECIPE)
    for other in (dataclasses.replace(task, vocab_size=10), dataclasses.replace(task, offsets=(1,))):
        with pytest.raises(ConfigError, match="a model of MultiOffsetCopy must know"):
            RunSettings(task=other, model=fits, recipe=RECIPE)
    gru = RecurrentConfig(cell="gru", vocab_size=9, embed_dim=7, num_outputs=17)
    with pytest.raises(ConfigError, match="must know 9 tokens and put out 18 numbers for each; got 9 and 17"):
        RunSettings(task=task, model=gru, recipe=RECIPE)
    rotary = transformer_for(task, embed_dim=8, num_heads=2, position="rotary")
    RunSettings(task=task, model=fits, recipe=RECIPE, lengthen="clamp")
    with pytest.raises(ConfigError, match="lengthen is for models with a learned position table"):
        RunSettings(task=task, model=rotary, recipe=RECIPE, lengthen="clamp")


def test_ways_and_budgets_that_a_run_would_refuse_are_refused_with_its_settings():
    gru = RecurrentConfig(cell="gru", vocab_size=9, embed_dim=7, num_outputs=18)
    task = MultiOffsetCopy(vocab_size=9, seq_len=8, offsets=(1, 3))
    for change, message in (
        ({"checkpoint": "full"}, 'checkpoint "none" and impl "auto"'),
        ({"impl": "sdpa"}, 'checkpoint "none" and impl "auto"'),
        ({"budget_tokens": 7}, "budget_tokens must pay for one step at the least, 48; got 7"),
    ):
        with pytest.raises(ConfigError, match=message):
            RunSettings(task=task, model=gru, recipe=dataclasses.replace(RECIPE, **change))


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    """The second is told; the first one's run is whole, and a later one reads it."""
    other = RunFolder(tmp_path / "run", SETTINGS.to_dict())
    with other.held(), pytest.raises(OutputError, match=r"another process is at work in .*run'; wait for it"):
        run(SETTINGS, tmp_path / "run")
    first = run(SETTINGS, tmp_path / "run")
    assert run(SETTINGS, tmp_path / "run") == first


def test_where_a_file_system_has_no_locks_a_run_goes_on_all_the_same(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("headwise.experiments.run_folder.fcntl.flock", flock)
    assert run(SETTINGS, tmp_path / "run").steps == RECIPE.steps
