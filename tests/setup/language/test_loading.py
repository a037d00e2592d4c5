"""Models, prompts and rewards load by name, what is trained is saved as others load it, and errors are one line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from primorl.online.mechanism import online_plan
from primorl.project.errors import PipelineError
from primorl.setup.language.loading import as_policy, load_policy, load_prompts, load_reward, save

transformers = pytest.importorskip("transformers", reason="the extra rlhf is not installed")
peft = pytest.importorskip("peft", reason="the extra rlhf is not installed")

from examples import tiny_reviews  # noqa: E402 -- it needs the extra

LOADERS = pytest.mark.parametrize(
    "load",
    [lambda name: load_policy(name, 2), lambda name: load_reward(name, 8), load_prompts],
    ids=["model", "reward", "prompts"],
)


@LOADERS
def test_a_name_that_is_not_there_is_said_in_one_line(load: Any, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"nothing' cannot be loaded \(.+\); allowed is a name") as refused:
        load(str(tmp_path / "nothing"))
    assert "\n" not in str(refused.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_reviews.untrained(seed=3, width=16).save_pretrained(tmp_path / "model")
    tiny_reviews.tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("rank", [2, None], ids=["adapter", "all parameters"])
def test_what_is_saved_answers_as_what_was_trained(folder: Path, tmp_path: Path, rank: int | None) -> None:
    policy, tokenizer = load_policy(str(folder), rank)
    assert policy.parameters == sum(p.numel() for p in policy.module.parameters() if p.requires_grad)
    learned = policy.initial() + 0.05
    plan = online_plan(users=100, cohort=10, noise_multiplier=4.0, releases=1, appearances=1, delta=1e-5)
    statement = plan.statement(dataset_fingerprint="00" * 32, public_assumptions=["the model before"])
    save(tmp_path / "out", policy, learned, statement)
    if rank is None:
        loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    else:
        base = transformers.AutoModelForCausalLM.from_pretrained(folder)
        loaded = peft.PeftModel.from_pretrained(base, tmp_path / "out")
    tokens = tokenizer(["this film was great"], return_tensors="pt")["input_ids"]
    ours = policy.module(tokens, torch.ones_like(tokens, dtype=torch.bool), 4)
    torch.testing.assert_close(loaded.eval()(input_ids=tokens).logits, ours, atol=1e-5, rtol=1e-5)
    stated = json.loads((tmp_path / "out" / "privacy.json").read_text())
    assert stated["private"]
    assert stated["epsilon"] == plan.spent().epsilon_pld  # type: ignore[union-attr]
    assert not list((tmp_path / "out").glob("*.bin")), "weights are safetensors, which run no code"


def test_an_adapter_begins_as_the_model_itself() -> None:
    plain, adapted = (as_policy(tiny_reviews.untrained(seed=3, width=16), rank) for rank in (None, 2))
    tokens = torch.tensor([[4, 9, 2, 12]])
    present = torch.ones_like(tokens, dtype=torch.bool)
    assert torch.equal(plain.module(tokens, present, 4), adapted.module(tokens, present, 4))
    again = as_policy(tiny_reviews.untrained(seed=3, width=16), 2)
    assert torch.equal(adapted.initial(), again.initial()), "an adapter's first values are public, so they are fixed"


def test_a_sentiment_classifier_scores_by_its_positive_label(tmp_path: Path) -> None:
    """DistilBERT's architecture, with random weights."""
    torch.manual_seed(0)
    tokenizer = tiny_reviews.tokenizer()
    config = transformers.DistilBertConfig(
        vocab_size=len(tokenizer), dim=8, hidden_dim=16, n_layers=1, n_heads=2, max_position_embeddings=16
    )
    config.id2label, config.label2id = {0: "NEGATIVE", 1: "POSITIVE"}, {"NEGATIVE": 0, "POSITIVE": 1}
    classifier = transformers.DistilBertForSequenceClassification(config).eval()
    classifier.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    reward = load_reward(str(tmp_path), length=10)
    texts = ["this film was great", "the cast was dull and slow and the story was bad"]
    for text, score in zip(texts, reward(texts), strict=True):
        encoded = tokenizer([text], return_tensors="pt", truncation=True, max_length=10)
        logits = classifier(input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"]).logits[0]
        torch.testing.assert_close(score, logits[1] - logits[0], atol=1e-4, rtol=1e-4)
    assert torch.equal(reward(texts)[:1], reward([texts[0], "film " * 9])[:1]), "a score depends on no other text"
    config.id2label = {0: "no", 1: "yes"}
    config.save_pretrained(tmp_path)
    with pytest.raises(PipelineError, match="has the labels no, yes; one must be 'positive'"):
        load_reward(str(tmp_path), length=10)


def test_prompts_come_from_a_folder_of_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets.arrow_dataset", reason="the extra rlhf is not installed")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "train.csv").write_text("text,label\nthis film,1\nthe story,0\n", encoding="utf-8")
    assert load_prompts(str(folder)) == ["this film", "the story"]
    with pytest.raises(PipelineError, match="has the columns text, label; 'review' is needed"):
        load_prompts(str(folder), column="review")
