import pickle

import pytest
import torch
import transformers
from torch import nn

from headwise.errors import ConfigError, UnsupportedError
from headwise.inspection.monitoring.callbacks import AttentionLightningCallback, AttentionTrainerCallback

VOCAB = 53


def tiny_bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=12, num_attention_heads=3, num_hidden_layers=2, intermediate_size=7
    )
    return transformers.BertForMaskedLM(config)


def texts(number):
    ids = torch.randint(1, VOCAB, (number, 7), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in ids]


def train(folder, callbacks, **settings):
    model = tiny_bert()
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        max_steps=3,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        **settings,
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=texts(8), callbacks=callbacks)
    trainer.train()
    return model


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_trainer_logs_every_head_and_trains_as_it_does_without(tmp_path, accumulation):
    rows = []
    callback = AttentionTrainerCallback(every=2, log=rows.append)
    watched = train(tmp_path / "one", [callback], gradient_accumulation_steps=accumulation)
    plain = train(tmp_path / "other", [], gradient_accumulation_steps=accumulation)
    assert callback.monitor.error is None
    assert [values["attention/step"] for values in rows] == [0.0, 2.0]
    for layer in range(2):
        for head in range(3):
            for figure in ("entropy", "sparsity", "weights", "sink_mass", "max_abs_score", "gradient_norm"):
                assert f"attention_{figure}/layer_{layer}/head_{head}" in rows[0]
    assert rows[0]["attention_gradient_norm/layer_0/head_0"] > 0
    for one, other in zip(watched.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in watched.modules())
    pickle.dumps(watched)


def test_a_trainer_that_compiles_is_refused(tmp_path):
    callback = AttentionTrainerCallback()
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    arguments.torch_compile = True
    with pytest.raises(UnsupportedError, match="got torch_compile=True"):
        callback.on_train_begin(arguments, None, None, model=tiny_bert())


@pytest.mark.parametrize("kind", [AttentionTrainerCallback, AttentionLightningCallback])
def test_a_mistake_in_the_settings_is_told_where_it_is_made(kind):
    with pytest.raises(ConfigError, match="log must be"):
        kind(log=3)


class Module(nn.Module):
    """What a LightningModule is to a callback: it trains by `training_step`, which is no forward pass of its own."""

    def __init__(self):
        super().__init__()
        self.body = tiny_bert()
        self.logged = []

    def training_step(self, batch):
        return self.body(**batch).loss

    def log_dict(self, values):
        self.logged.append(values)


class LightningTrainer:
    """Calls a callback's hooks in Lightning's order, hooks that it does not define included."""

    def __init__(self, callback, accumulate):
        self.callback, self.accumulate = callback, accumulate
        self.global_step = 0

    def call(self, name, *args):
        getattr(self.callback, name)(self, self.module, *args)

    def fit(self, module, batches):
        self.module = module
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        self.callback.setup(self, module, "fit")
        self.call("on_fit_start")
        self.call("on_train_start")
        self.call("on_train_epoch_start")
        for number, batch in enumerate(batches):
            self.call("on_train_batch_start", batch, number)
            loss = module.training_step(batch)
            self.call("on_before_backward", loss)
            loss.backward()
            self.call("on_after_backward")
            if (number + 1) % self.accumulate == 0:
                self.call("on_before_optimizer_step", optimizer)
                optimizer.step()
                self.call("on_before_zero_grad", optimizer)
                optimizer.zero_grad()
                self.global_step += 1
            self.call("on_train_batch_end", None, batch, number)
        self.call("on_train_end")
        self.callback.teardown(self, module, "fit")


def test_the_first_batch_of_a_step_is_looked_at():
    batches = [{name: value.unsqueeze(0) for name, value in text.items()} for text in texts(2)]
    one, two = Module(), Module()
    torch.manual_seed(1)
    LightningTrainer(AttentionLightningCallback(), 1).fit(one, batches[:1])
    torch.manual_seed(1)
    LightningTrainer(AttentionLightningCallback(), 2).fit(two, batches)
    names = [name for name in one.logged[0] if name.startswith("attention_entropy")]
    assert [one.logged[0][name] for name in names] == [two.logged[0][name] for name in names]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_lightnings_hooks_sample_optimizer_steps(accumulate):
    batches = [{name: value.unsqueeze(0) for name, value in text.items()} for text in texts(6)]
    callback = AttentionLightningCallback(every=2)
    module = Module()
    LightningTrainer(callback, accumulate).fit(module, batches)
    assert callback.monitor.error is None
    expected = [0.0, 2.0, 4.0] if accumulate == 1 else [0.0, 2.0]
    assert [values["attention/step"] for values in module.logged] == expected
    assert "attention_entropy/layer_1/head_2" in module.logged[0]
    assert all(isinstance(value, float) for value in module.logged[0].values())
    assert not any(part._forward_pre_hooks for part in module.modules())
    assert callback.state_dict() == {}


def test_lightning_logs_elsewhere_where_that_is_asked_for():
    rows = []
    batches = [{name: value.unsqueeze(0) for name, value in text.items()} for text in texts(2)]
    module = Module()
    LightningTrainer(AttentionLightningCallback(every=1, log=rows.append), 1).fit(module, batches)
    assert len(rows) == 2
    assert module.logged == []


def test_an_exception_in_lightning_takes_the_monitor_off():
    callback, module = AttentionLightningCallback(), Module()
    trainer = LightningTrainer(callback, 1)
    callback.on_train_start(trainer, module)
    callback.on_train_batch_start(trainer, module, None, 0)
    assert any(part._forward_pre_hooks for part in module.modules())
    callback.on_exception(trainer, module, KeyError())
    assert not any(part._forward_pre_hooks for part in module.modules())


def test_other_events_are_answered_and_other_names_are_not():
    callback = AttentionTrainerCallback()
    assert callback.on_anything(1, two=2) is None
    with pytest.raises(AttributeError, match="has no attribute 'somewhere'"):
        _ = callback.somewhere
