"""The Transformers adapter: the Trainer does what a plain loop with SharpnessAware does."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F

from ausam import (
    ESAM,
    SAM,
    AUSampling,
    Full,
    InfoBatch,
    LookSAM,
    Plain,
    SelectiveBatchSampler,
    SharpnessAware,
)
from ausam.audit import Audit
from tests.helpers import few_of, few_or_many, refused, same_audit, same_weights

pytest.importorskip("accelerate", reason='needs pip install "ausam[transformers]"')
transformers = pytest.importorskip("transformers", reason='needs pip install "ausam[transformers]"')

from transformers import (  # noqa: E402
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    TrainingArguments,
)

from ausam.integrations._sequences import per_sample  # noqa: E402
from ausam.integrations.transformers import AuditCallback, SharpnessAwareTrainer  # noqa: E402

FIELDS = [field.name for field in dataclasses.fields(TrainingArguments)]
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
    same_weights(model, plain, rtol=1e-6, atol=1e-7)
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
    same_weights(model, plain, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "policy", [AUSampling(0.5, ramp=1), InfoBatch(prune=0.5, epochs=8)], ids=lambda p: type(p).__name__
)
@pytest.mark.parametrize("at", few_of([3, 6, 9], 3))
def test_it_continues_from_the_trainers_checkpoint(policy, at, tmp_path):
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
    same_weights(whole.model, rest.model)
    assert torch.equal(whole.batches.selective.scores.sum, rest.batches.selective.scores.sum)


def test_accumulation_goes_on_too(tmp_path):
    settings = {"num_train_epochs": 2, "gradient_accumulation_steps": 4, "save_steps": 1, "save_strategy": "steps"}
    policy = AUSampling(0.5, ramp=1)
    whole = trainer(tmp_path, Sentences(), policy=policy, **settings)  # 6 batches an epoch: steps of 4 and of 2
    whole.train()
    rest = trainer(tmp_path, Sentences(), policy=policy, **settings)
    rest.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert whole.state.global_step == rest.state.global_step == 4
    same_weights(whole.model, rest.model)


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
        result, logits = t.losses(model, {"input_ids": words, "labels": labels})
        alone = [model(input_ids=words[i : i + 1], labels=labels[i : i + 1]).loss for i in range(5)]
        torch.testing.assert_close(result, torch.stack(alone), rtol=1e-5, atol=1e-6)
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
    result, _ = t.losses(model, {"input_ids": words, "labels": labels})
    alone = [model(input_ids=words[i : i + 1], labels=labels[i : i + 1]).loss for i in range(5)]
    torch.testing.assert_close(result, torch.stack(alone), rtol=1e-5, atol=1e-6)
    assert model.config.problem_type == problem


def test_label_smoothing_is_the_trainers(tmp_path):
    model = classifier(BertForMaskedLM).eval()
    t = trainer(tmp_path, Sentences(), model, label_smoothing_factor=0.2)
    words = torch.randint(1, WORDS, (4, LENGTH))
    with torch.no_grad():
        result, _ = t.losses(model, {"input_ids": words, "labels": words})
        expected = t.compute_loss(model, {"input_ids": words, "labels": words.clone()})
    torch.testing.assert_close(result.mean(), expected)  # equally many tokens in each


# -- what the user overrides, and what TrainingArguments say ---------------------------------------------------------


class WeightedSharp(SharpnessAwareTrainer):
    """Class weights, as everybody writes them."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs.logits, labels, weight=torch.tensor([1.0, 3.0]))
        return (loss, outputs) if return_outputs else loss


def weighted(outputs, labels, num_items_in_batch=None):
    return (
        F.cross_entropy(outputs.logits, labels, weight=torch.tensor([1.0, 3.0]), reduction="sum") / num_items_in_batch
    )


def theirs(kind, folder, model, changes, **more):
    """A training with SGD by a Trainer that shuffles as every other with the same seed."""
    t = kind(model, arguments(folder, **changes), train_dataset=Sentences(), optimizers=(sgd(model), None), **more)
    t.train()
    return t


SETTINGS = {
    "nothing": {},
    "clipping": {"max_grad_norm": 0.05},
    "accumulation": {"gradient_accumulation_steps": 4, "max_grad_norm": 0.05},
    "smoothing": {"label_smoothing_factor": 0.2},
    "grouping": {"train_sampling_strategy": "group_by_length"},
    "neftune": {"neftune_noise_alpha": 5.0},
    "bfloat16": {"bf16": True},
    "checkpointing": {next(name for name in FIELDS if name.endswith("_checkpointing")): True},
    "a schedule": {"lr_scheduler_type": "cosine", "warmup_steps": 3},
    "split batches": {"accelerator_config": {"split_batches": True}},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_with_plain_it_is_the_trainer(name, tmp_path):
    """Bit for bit, whatever the settings; so with another method the settings are the Trainer's too."""
    plain, ours = (classifier(BertForSequenceClassification) for _ in range(2))
    theirs(transformers.Trainer, tmp_path, plain, SETTINGS[name])
    theirs(SharpnessAwareTrainer, tmp_path, ours, SETTINGS[name], method=Plain())
    same_weights(plain, ours)


@pytest.mark.parametrize("kind", ["compute_loss", "compute_loss_func"])
def test_a_loss_of_ones_own_is_the_one_that_is_trained(kind, tmp_path):
    """Class weights, in each of SAM's passes."""
    model = classifier(BertForSequenceClassification)
    plain = copy.deepcopy(model)
    more = {"compute_loss_func": weighted} if kind == "compute_loss_func" else {}
    seen = []

    class Watching(WeightedSharp if kind == "compute_loss" else SharpnessAwareTrainer):
        def training_step(self, model, inputs, *args):
            seen.append(dict(inputs))
            return super().training_step(model, inputs, *args)

    theirs(Watching, tmp_path, model, {"num_train_epochs": 1}, method=SAM(rho=0.1), **more)
    opt = SharpnessAware(sgd(plain), SAM(rho=0.1), plain)
    plain.train()
    for batch in seen:

        def closure(batch=batch):
            outputs = plain(input_ids=batch["input_ids"])
            mean = F.cross_entropy(outputs.logits, batch["labels"], weight=torch.tensor([1.0, 3.0]))
            loss = mean if kind == "compute_loss" else weighted(outputs, batch["labels"], 8)
            loss.backward()
            return loss

        opt.step(closure)
    same_weights(model, plain, rtol=1e-6, atol=1e-7)


class Counting(SharpnessAwareTrainer):
    """Keeps figures while it computes the loss, under the names that TRL's trainers use."""

    def __init__(self, *args, **kw):
        super().__init__(*args, **kw)
        self._metrics, self._total_train_tokens, self.passes = {"train": {"loss": []}}, 0, 0

    def compute_loss(self, model, inputs, **kw):
        loss = super().compute_loss(model, inputs, **kw)
        self.passes += 1
        self._total_train_tokens += inputs["input_ids"].numel()
        self._metrics["train"]["loss"].append(loss.item())
        return loss


def test_figures_kept_while_the_loss_is_computed_are_those_of_the_pass_at_w(tmp_path):
    t = trainer(tmp_path, Sentences(16), kind=Counting, num_train_epochs=1, gradient_accumulation_steps=2)
    t.train()
    assert t.passes == 4
    assert t._total_train_tokens == 16 * LENGTH
    assert len(t._metrics["train"]["loss"]) == 2


def test_tokens_are_averaged_as_the_trainer_does(tmp_path):
    """A language model with padding and accumulation: the Trainer divides by the tokens of all micro-batches."""
    torch.manual_seed(0)
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8, "bos_token_id": 1, "eos_token_id": 1}
    config = GPT2Config(vocab_size=WORDS, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **shape)

    class Padded(Sentences):
        def __getitem__(self, i):
            words = self.words[i]
            return {"input_ids": words, "labels": torch.where(torch.arange(LENGTH) < 2 + i % 5, words, -100)}

    models = []
    for kind, more in ((transformers.Trainer, {}), (SharpnessAwareTrainer, {"method": SAM(rho=0.0)})):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config)
        args = arguments(tmp_path, gradient_accumulation_steps=3)
        kind(model, args, train_dataset=Padded(), optimizers=(sgd(model), None), **more).train()
        models.append(model)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("policy", few_or_many(AUSampling(0.5, ramp=1), None))
def test_a_compiled_model_trains_alike(policy, tmp_path):
    result = []
    for compiled in (False, True):
        model = classifier(BertForSequenceClassification)
        compilation = {"torch_compile": True, "torch_compile_backend": "eager"} if compiled else {}
        theirs(SharpnessAwareTrainer, tmp_path, model, compilation, method=SAM(rho=0.1), policy=policy)
        result.append(model)
    torch.compiler.reset()
    same_weights(*result, rtol=1e-6, atol=1e-7)


def test_an_optimizer_by_hand_is_used_as_it_is(tmp_path):
    model = classifier()
    plain = copy.deepcopy(model)
    opt = SharpnessAware(sgd(model), LookSAM(rho=0.1, k=2), model, seed=42)
    policy = AUSampling(0.5, ramp=1)
    t = SharpnessAwareTrainer(
        model, arguments(tmp_path), train_dataset=Sentences(), optimizers=(opt, None), policy=policy
    )
    t.train()
    assert t.sharpness_aware is opt
    by_hand(plain, Sentences(), LookSAM(rho=0.1, k=2), policy, 2)
    same_weights(model, plain, rtol=1e-6, atol=1e-7)


def test_the_plain_trainer_is_refused(tmp_path):
    model = classifier()
    opt = SharpnessAware(sgd(model), SAM(rho=0.1), model)
    args = arguments(tmp_path, max_steps=1)
    with pytest.raises(TypeError, match="use SharpnessAwareTrainer"):
        transformers.Trainer(model, args, train_dataset=Sentences(), optimizers=(opt, None)).train()


@pytest.mark.parametrize("at", [3, 6])
def test_an_audit_is_fed_and_continues_from_a_checkpoint(at, tmp_path):
    """It equals one that is fed by hand; in the middle and at the end of an epoch of 6 batches."""
    settings = {"num_train_epochs": 2, "save_steps": 3, "save_strategy": "steps"}

    def fresh(*audits, **more):
        axes = {"method": SAM(rho=0.1), "policy": Full(), "callbacks": [AuditCallback(audit) for audit in audits]}
        return SharpnessAwareTrainer(
            classifier(), arguments(tmp_path, **settings), train_dataset=Sentences(), **axes, **more
        )

    by_hand, whole, rest = (Audit(N, Sentences().labels) for _ in range(3))
    fresh(whole, on_feedback=by_hand.update).train()
    same_audit(whole, by_hand)
    assert (whole.table()["visits"] == 2).all()
    fresh(rest).train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{at}"))
    same_audit(whole, rest)
    with pytest.raises(ValueError, match="shorter"):  # a checkpoint of one audit
        fresh(rest, Audit(N)).train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{at}"))


def test_schedule_free_and_cache_settings_reach_training_by_rows(tmp_path, monkeypatch):
    cleared, trained = [], []
    monkeypatch.setattr("ausam.integrations.transformers.clear_device_cache", lambda: cleared.append(1))

    class Free(torch.optim.SGD):
        def train(self):
            trained.append(1)

        def eval(self):
            pass

    model = classifier()
    t = SharpnessAwareTrainer(
        model,
        arguments(tmp_path, max_steps=4, torch_empty_cache_steps=2),
        train_dataset=Sentences(),
        optimizers=(Free(model.parameters(), lr=0.01), None),
        method=SAM(rho=0.1),
        policy=Full(),
    )
    t.train()
    assert (len(cleared), len(trained)) == (2, 4)


def test_a_dataset_of_hugging_face_is_chosen_from(tmp_path):
    datasets = pytest.importorskip("datasets", reason='needs pip install "ausam[datasets]"')
    own = Sentences()
    rows = {"input_ids": own.words.tolist(), "labels": own.labels.tolist(), "note": ["dropped"] * N}
    models = [classifier(), classifier()]
    for model, data in zip(models, (own, datasets.Dataset.from_dict(rows)), strict=True):
        trainer(tmp_path, data, model, policy=AUSampling(0.5, ramp=1)).train()
    same_weights(*models, rtol=1e-6, atol=1e-7)


@pytest.mark.nightly
def test_a_batch_size_that_does_not_fit_is_reduced(tmp_path):
    class Small(SharpnessAwareTrainer):
        def losses(self, model, inputs):
            if len(inputs["labels"]) > 4:
                raise RuntimeError("CUDA out of memory.")
            return super().losses(model, inputs)

    t = trainer(
        tmp_path, Sentences(), policy=AUSampling(0.5, ramp=1), kind=Small, auto_find_batch_size=True, num_train_epochs=1
    )
    t.train()
    assert t.batches.selective.mini_batch < 8
    assert int(t.batches.selective.scores.count.sum()) == N  # the first epoch of a new sampler


def test_a_new_model_of_a_search_begins_without_scores(tmp_path):
    args = arguments(tmp_path, num_train_epochs=1)
    axes = {"method": SAM(rho=0.1), "policy": AUSampling(0.5, ramp=1)}
    t = SharpnessAwareTrainer(args=args, model_init=lambda: classifier(), train_dataset=Sentences(), **axes)
    t.train()
    first = t.batches.selective
    t.train()
    assert t.batches.selective is not first
    assert int(t.batches.selective.scores.count.sum()) == N


# The argument, the policy and the remedy.
REFUSED = {
    "optim": ({"optim": "lomo"}, None, "such as adamw_torch"),
    "train_sampling_strategy": ({"train_sampling_strategy": "group_by_length"}, AUSampling(), 'Leave it at "random"'),
    "use_liger_kernel": ({"use_liger_kernel": True}, AUSampling(), "override losses(model, inputs)"),
    "dataloader_in_order": ({"dataloader_in_order": False}, AUSampling(), "Leave it True"),
    "ignore_data_skip": ({"ignore_data_skip": True}, AUSampling(), "Leave it False"),
    "accelerator_config": ({"accelerator_config": {"dispatch_batches": True}}, AUSampling(), "Leave it None"),
    "ddp_static_graph": ({"ddp_static_graph": True}, None, "Leave it off"),
    "parallelism_config": ({"parallelism_config": object()}, None, "Use one device or DDP"),
    "fsdp": ({"fsdp": True}, None, "Use one device or DDP"),
    "deepspeed": ({"deepspeed": {"zero": 1}}, None, "Use one device or DDP"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_that_cannot_be_honoured_is_refused(name, tmp_path):
    changes, policy, remedy = REFUSED[name]
    late = {} if name == "accelerator_config" else changes

    class Configured(transformers.Trainer):
        """Sets them past the checks of Transformers itself, some of which need other packages."""

        def __init__(self, *args, **kw):
            super().__init__(*args, **kw)
            vars(self.args).update(late)

    class Ours(SharpnessAwareTrainer, Configured):
        pass

    args = arguments(tmp_path, **({} if late else changes))
    with refused(ValueError, f"{name}: ", remedy):
        Ours(classifier(), args, train_dataset=Sentences(), method=SAM(), policy=policy)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from []


class Bare(SharpnessAwareTrainer):
    def create_optimizer(self, model=None):
        self.optimizer = sgd(self.model)
        return self.optimizer


def test_what_cannot_work_is_refused(tmp_path, monkeypatch):
    def refuses(*parts, kind=SharpnessAwareTrainer, error=TypeError, model=None, data=None, **more):
        args = arguments(tmp_path, **more.pop("args", {}))
        given = {"train_dataset": data or Sentences(), "method": SAM(), **more}
        with refused(error, *parts):
            kind(model or classifier(), args, **given).train()

    refuses("AUSampling", "Plain never evaluates", error=ValueError, method=Plain(), policy=AUSampling())
    remedy = "Override losses(model, inputs)"
    refuses("compute_loss_func", "AUSampling", remedy, compute_loss_func=lambda *_: 0, policy=AUSampling())
    refuses("compute_loss", "ESAM", remedy, kind=WeightedSharp, method=ESAM())
    refuses("needs a method", "method=SAM(rho=0.05)", method=None)
    refuses("on_feedback", "policy=Full()", on_feedback=print)
    refuses("AuditCallback", "policy=Full()", callbacks=[AuditCallback(Audit(N))])
    model = classifier()
    both = SharpnessAware(sgd(model), SAM(), model)
    refuses("a SharpnessAware", "Pass the plain optimizer", model=model, optimizers=(both, None))
    twice = {"gradient_accumulation_steps": 2}
    refuses("InfoBatch", "accumulation_steps=1", error=ValueError, policy=InfoBatch(epochs=3), args=twice)
    refuses("Stream", "ausam.SelectiveStream", data=Stream(), policy=AUSampling(), args={"max_steps": 3})
    refuses("Bare", "create_optimizer", "optimizers=(base, None)", kind=Bare, error=RuntimeError)
    asking = classifier(BertForQuestionAnswering)
    refuses("start_positions, end_positions", remedy, error=ValueError, model=asking, policy=AUSampling())
    monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
    refuses("2 GPUs", "torchrun", "CUDA_VISIBLE_DEVICES=0", error=ValueError)
    monkeypatch.undo()
    t = trainer(tmp_path, Sentences())
    with refused(ValueError, "only input_ids", remedy):
        t.losses(t.model, {"input_ids": torch.ones(2, 3, dtype=torch.int64)})
    with refused(ValueError, "label_smoothing_factor is 0.1", "Set it to 0"):
        per_sample(torch.ones(2, 1), torch.ones(2), smoothing=0.1)


def test_training_again_begins_at_epoch_0_and_keeps_the_scores(tmp_path):
    t = trainer(tmp_path, Sentences(16), policy=AUSampling(0.5), num_train_epochs=1)
    t.train()
    t.train()
    assert t.sharpness_aware.steps == 4
    assert t.batches.selective.scores.count.tolist() == [2] * 16
    assert t.batches.selective.epoch == 1


@pytest.mark.parametrize(("limits", "epochs"), [({"num_train_epochs": 1.5}, 2), ({"max_steps": 4}, 2)], ids=str)
def test_the_sampler_learns_how_many_epochs_the_trainer_runs(limits, epochs, tmp_path):
    t = trainer(tmp_path, Sentences(), policy=AUSampling(0.5), gradient_accumulation_steps=2, **limits)
    t.train()
    assert t.batches.selective.policy == AUSampling(0.5, epochs=epochs)
