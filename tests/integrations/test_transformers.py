"""The Transformers adapter: the Trainer does what a plain loop with SharpnessAware does."""

import copy

import pytest
import torch
import torch.nn.functional as F

from ausam import SAM, AUSampling, Full, InfoBatch, LookSAM, Plain, SelectiveBatchSampler, SharpnessAware

pytest.importorskip("accelerate", reason='needs pip install "ausam[transformers]"')
transformers = pytest.importorskip("transformers", reason='needs pip install "ausam[transformers]"')

from transformers import (  # noqa: E402
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    TrainingArguments,
)

from ausam.integrations._sequences import per_sample  # noqa: E402
from ausam.integrations.transformers import SharpnessAwareTrainer  # noqa: E402

N, LENGTH, WORDS = 48, 6, 20
SMALL = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "pad_token_id": 0}
BERT = {**SMALL, "intermediate_size": 16, "max_position_embeddings": 16}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class Sentences(torch.utils.data.Dataset):
    """Sentences labelled by whether a word is in them; counts what is read."""

    def __init__(self, n=N):
        self.words = torch.randint(1, WORDS, (n, LENGTH), generator=torch.Generator().manual_seed(3))
        self.labels = (self.words == 7).any(1).long()
        self.read = []

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        self.read.append(i)
        return {"input_ids": self.words[i], "labels": self.labels[i], "note": "dropped by the Trainer"}


class WithNorm(BertForSequenceClassification):
    """A classifier with BatchNorm, whose statistics must move once a step."""

    def __init__(self, config):
        super().__init__(config)
        self.classifier = torch.nn.Sequential(torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2))


def classifier(kind=WithNorm, **changes):
    torch.manual_seed(0)
    return kind(BertConfig(**{**BERT, **NO_DROPOUT, **changes}))


def arguments(folder, **changes):
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "num_train_epochs": 2,
        "learning_rate": 0.01,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(**{**settings, **changes})


def trainer(folder, data, model=None, method=None, policy=None, kind=SharpnessAwareTrainer, **changes):
    model = model or classifier()
    return kind(
        model,
        arguments(folder, **changes),
        train_dataset=data,
        optimizers=(sgd(model), None),
        method=method or SAM(rho=0.1),
        policy=policy,
    )


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def by_hand(model, data, method, policy, epochs, parts=1):
    """The same training in a plain loop."""
    opt = SharpnessAware(sgd(model), method, model, seed=42)
    sampler = SelectiveBatchSampler(len(data), 8, policy, seed=42)

    def losses(words, labels):
        z = model(input_ids=words).logits
        return F.cross_entropy(z, labels, reduction="none"), z

    used = []
    model.train()
    for _ in range(epochs):
        for b, chosen in enumerate(sampler):
            i = torch.tensor(chosen)
            used += chosen
            sampler.update(
                opt.backward(
                    losses,
                    data.words[i],
                    data.labels[i],
                    index=i,
                    weight=sampler.weight(i),
                    backward=lambda loss: (loss / parts).backward(),
                )
            )
            if (b + 1) % parts == 0:
                opt.step()
                opt.zero_grad()
    return opt, sampler, used


def same(a, b):
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-7, msg=name)


@pytest.mark.parametrize(
    "policy", [AUSampling(0.5, ramp=1), InfoBatch(prune=0.5, epochs=8)], ids=lambda p: type(p).__name__
)
def test_it_trains_as_a_plain_loop(policy, tmp_path):
    data, model = Sentences(), classifier()
    plain = copy.deepcopy(model)
    t = trainer(tmp_path, data, model, LookSAM(rho=0.1, k=2), policy, num_train_epochs=3)
    t.train()
    read = list(data.read)
    opt, sampler, used = by_hand(plain, data, LookSAM(rho=0.1, k=2), policy, 3)
    same(model, plain)
    assert t.sharpness_aware.steps == opt.steps
    assert int(model.classifier[0].num_batches_tracked) == opt.steps  # once a step, though there are two passes
    assert torch.equal(t.batches.selective.scores.count, sampler.scores.count)
    assert read == used  # what was not chosen was never read
    assert len(read) < 3 * N


def test_accumulated_batches_add_up(tmp_path):
    data, model = Sentences(), classifier()
    plain = copy.deepcopy(model)
    t = trainer(tmp_path, data, model, policy=Full(), num_train_epochs=2, gradient_accumulation_steps=3)
    t.train()
    opt, *_ = by_hand(plain, data, SAM(rho=0.1), Full(), 2, parts=3)
    assert t.state.global_step == opt.steps == 4
    same(model, plain)


def test_without_a_policy_the_trainers_own_batches_are_used(tmp_path):
    data, model = Sentences(16), classifier()
    plain, seen = copy.deepcopy(model), []

    class Watching(SharpnessAwareTrainer):
        def training_step(self, model, inputs, *args):
            seen.append({k: v.clone() for k, v in inputs.items()})
            return super().training_step(model, inputs, *args)

    trainer(tmp_path, data, model, kind=Watching, num_train_epochs=1).train()
    opt = SharpnessAware(sgd(plain), SAM(rho=0.1), plain)
    plain.train()
    for batch in seen:
        opt.backward(lambda x, y: F.cross_entropy(plain(input_ids=x).logits, y, reduction="none"), *batch.values())
        opt.step()
        opt.zero_grad()
    assert [set(b) for b in seen] == [{"input_ids", "labels"}] * 2
    same(model, plain)


@pytest.mark.parametrize(
    "policy", [AUSampling(0.5, ramp=1), InfoBatch(prune=0.5, epochs=8)], ids=lambda p: type(p).__name__
)
@pytest.mark.parametrize("at", [3, 6, 9])
def test_it_goes_on_from_the_trainers_checkpoint(policy, at, tmp_path):
    """With dropout, a schedule and a method that remembers; in the middle and at the end of an epoch (6 batches)."""
    settings = {"num_train_epochs": 3, "lr_scheduler_type": "linear", "save_steps": 3, "save_strategy": "steps"}

    def fresh():  # with the Trainer's own AdamW
        axes = {"method": LookSAM(rho=0.1, k=2), "policy": policy}
        model = classifier(BertForSequenceClassification, hidden_dropout_prob=0.3)
        return SharpnessAwareTrainer(model, arguments(tmp_path, **settings), train_dataset=Sentences(), **axes)

    whole = fresh()
    whole.train()
    rest = fresh()
    rest.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{at}"))
    assert rest.state.global_step == whole.state.global_step
    assert rest.train_dataset.read == whole.train_dataset.read[-len(rest.train_dataset.read) :]
    for x, y in zip(whole.model.state_dict().values(), rest.model.state_dict().values(), strict=True):
        assert torch.equal(x, y)
    assert torch.equal(whole.batches.selective.scores.sum, rest.batches.selective.scores.sum)


def test_accumulation_goes_on_too(tmp_path):
    settings = {"num_train_epochs": 2, "gradient_accumulation_steps": 4, "save_steps": 1, "save_strategy": "steps"}
    policy = AUSampling(0.5, ramp=1)
    whole = trainer(tmp_path, Sentences(), policy=policy, **settings)  # 6 batches an epoch: steps of 4 and of 2
    whole.train()
    rest = trainer(tmp_path, Sentences(), policy=policy, **settings)
    rest.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert whole.state.global_step == rest.state.global_step == 4
    for x, y in zip(whole.model.state_dict().values(), rest.model.state_dict().values(), strict=True):
        assert torch.equal(x, y)


def test_language_models_average_over_the_tokens_of_each_sequence(tmp_path):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=WORDS, n_embd=16, n_layer=1, n_head=2, n_positions=8, bos_token_id=1, eos_token_id=1)
    causal = GPT2LMHeadModel(config).eval()
    masked = classifier(BertForMaskedLM).eval()
    words = torch.randint(1, WORDS, (5, LENGTH))
    labels = words.clone()
    labels[0, 2:] = labels[1, 4:] = -100
    for model, shift in ((causal, True), (masked, False)):
        t = trainer(tmp_path, Sentences(), model)
        found, logits = t.losses(model, {"input_ids": words, "labels": labels})
        alone = [model(input_ids=words[i : i + 1], labels=labels[i : i + 1]).loss for i in range(5)]
        torch.testing.assert_close(found, torch.stack(alone), rtol=1e-5, atol=1e-6)
        assert logits.shape == (5, LENGTH, WORDS)
        nothing = per_sample(logits, torch.full_like(labels, -100), shift)
        assert torch.equal(nothing, torch.zeros(5))


@pytest.mark.parametrize("problem", ["regression", "single_label_classification", "multi_label_classification"])
def test_other_heads_lose_what_the_model_says(problem, tmp_path):
    n = 1 if problem == "regression" else 3
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**BERT, num_labels=n)).eval()
    words = torch.randint(1, WORDS, (5, LENGTH))
    labels = {
        "regression": torch.randn(5),
        "single_label_classification": torch.randint(3, (5,)),
        "multi_label_classification": torch.randint(2, (5, 3)).float(),
    }[problem]
    t = trainer(tmp_path, Sentences(), model)
    found, _ = t.losses(model, {"input_ids": words, "labels": labels})
    alone = [model(input_ids=words[i : i + 1], labels=labels[i : i + 1]).loss for i in range(5)]
    torch.testing.assert_close(found, torch.stack(alone), rtol=1e-5, atol=1e-6)
    assert model.config.problem_type == problem


def test_label_smoothing_is_the_trainers(tmp_path):
    model = classifier(BertForMaskedLM).eval()
    t = trainer(tmp_path, Sentences(), model, label_smoothing_factor=0.2)
    words = torch.randint(1, WORDS, (4, LENGTH))
    with torch.no_grad():
        found, _ = t.losses(model, {"input_ids": words, "labels": words})
        expected = t.compute_loss(model, {"input_ids": words, "labels": words.clone()})
    torch.testing.assert_close(found.mean(), expected)  # equally many tokens in each


def test_what_cannot_work_is_refused(tmp_path):
    with pytest.raises(ValueError, match="AUSampling ranks samples by sharpness, but Plain never evaluates"):
        trainer(tmp_path, Sentences(), method=Plain(), policy=AUSampling())
    with pytest.raises(TypeError) as told:
        SharpnessAwareTrainer(
            classifier(), arguments(tmp_path), train_dataset=Sentences(), method=SAM(), compute_loss_func=lambda *_: 0
        )
    assert str(told.value) == (
        "compute_loss_func makes one loss a batch, not one a sample. Override losses(model, inputs)."
    )
    with pytest.raises(ValueError) as told:
        trainer(tmp_path, Sentences(), policy=InfoBatch(epochs=3), gradient_accumulation_steps=2)
    assert str(told.value) == (
        "InfoBatch changes the number of batches from epoch to epoch, which the Trainer's gradient accumulation does "
        "not expect. Use gradient_accumulation_steps=1, or another policy."
    )
    t = trainer(tmp_path, Sentences())
    with pytest.raises(ValueError) as told:
        t.losses(t.model, {"input_ids": torch.ones(2, 3, dtype=torch.int64)})
    assert str(told.value) == "The batch has no labels, only input_ids. Override losses(model, inputs)."


def test_training_again_begins_at_epoch_0_and_keeps_the_scores(tmp_path):
    t = trainer(tmp_path, Sentences(16), policy=AUSampling(0.5, ramp=1), num_train_epochs=1)
    t.train()
    t.train()
    assert t.sharpness_aware.steps == 4
    assert t.batches.selective.scores.count.tolist() == [2] * 16
    assert t.batches.selective.epoch == 1
