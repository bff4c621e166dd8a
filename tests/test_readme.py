"""The code of the README and of the documentation runs and prints what they show."""

import contextlib
import io
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from jaxpriv import metrics
from jaxpriv.attacks import evidence as evidence_lib
from jaxpriv.attacks import suite

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf8")
TOUR = README.split("## The tour")[1].split("\n## ")[0]


TOUR_CODE = "\n".join(re.findall(r"```python\n(.*?)```", TOUR, re.S))
TOUR_OUTPUT = "".join(re.findall(r"```text\n(.*?)```", TOUR, re.S))


def printed_by(code, name):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, name, "exec"), {})
    return printed.getvalue()


@pytest.mark.slow
def test_the_tour_prints_what_it_says():
    assert printed_by(TOUR_CODE, "README.md") == TOUR_OUTPUT


def test_the_tour_runs():
    """With fewer steps, so that the numbers are others."""
    assert TOUR_CODE.count("1500") >= 4
    printed = printed_by(TOUR_CODE.replace("1500", "15"), "README.md")
    assert re.sub(r"[\d.]+", "#", printed) == re.sub(r"[\d.]+", "#", TOUR_OUTPUT)


def test_a_model_of_another_library_trains_and_explains_itself():
    models = (ROOT / "docs" / "models.md").read_text("utf8")
    (code,) = re.findall(r"```python\n(.*?)```", models, re.S)
    printed = printed_by(code, "models.md")
    assert re.search(r"embed.* lookup", printed)
    assert "explicit" in printed


@pytest.mark.slow
def test_a_translation_model_trains_with_its_guarantee():
    page = (ROOT / "docs" / "translation.md").read_text("utf8").split("\n## Attacks")[0]
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    assert re.search(r"epsilon \d", printed_by(code, "translation.md"))


def test_more_sentences_of_a_user_show_more():
    page = (ROOT / "docs" / "translation.md").read_text("utf8").split("\n## Attacks")[1]
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.S))
    sentence, user = re.findall(r"AUC ([\d.]+)", printed_by(code, "translation.md"))
    assert 0.8 < float(sentence) < float(user)


def test_the_recipe_for_a_training_of_another_framework_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "command_line.md").read_text("utf8").split("## Your own network")[1]
    network, recipe, private = re.findall(r"```python\n(.*?)```", page.split("\n## ")[0], re.S)
    names = {}
    exec(compile(network, "my_model.py", "exec"), names)
    assert names["make"]()[2] == 500
    printed = printed_by(recipe + private.replace("steps=60", "steps=4"), "command_line.md")
    assert re.search(r"[12] of 2 attacks find", printed)
    assert (tmp_path / "forest" / "report.html").exists()
    assert "Claimed guarantee: " in printed


def test_the_recipe_for_a_table_of_losses_writes_scores(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("losses.csv").write_text("id,loss,in_train\n1,0.2,1\n2,1.5,0\n")
    page = (ROOT / "docs" / "command_line.md").read_text("utf8")
    code = re.findall(r"```python\n(.*?)```", page.split("## Scores of any framework")[1], re.S)[0]
    printed_by(code, "command_line.md")
    evidence, is_member = evidence_lib.load("scores.npz")
    assert evidence.signals.tolist() == [-0.2, -1.5]
    assert is_member.tolist() == [True, False]


def test_the_recipe_for_model_inversion_runs():
    page = (ROOT / "docs" / "attacks.md").read_text("utf8").split("## Beyond membership")[1]
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    assert "restarts=2" in code
    x = np.random.default_rng(0).random((6, 28, 28, 1)).astype(np.float32)
    names = {
        "key": jax.random.key(0),
        "predict": lambda image: x[:3].reshape(3, -1) @ image.reshape(-1),
        "labels": np.arange(3),
        "x": x,
        "y": np.arange(6) % 3,
    }
    exec(compile(code.replace("restarts=2", "restarts=2, steps=2"), "attacks.md", "exec"), names)
    assert names["result"].best.shape == (3, 28, 28, 1)


def run_recipe(framework, **names):
    """Runs the first block of code after the name of a framework; returns what it stores."""
    text = README.split("## Your own model and data")[1].split(f"\n{framework}", 1)[1]
    exec(compile(re.search(r"```python\n(.*?)```", text, re.S)[1], "README.md", "exec"), names)
    return evidence_lib.load("scores.npz")


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 4)).astype(np.float32)
    labels = (x[:, 0] + 2 * rng.normal(size=80) > 0).astype(int)
    return x, labels, np.arange(80) % 2 == 0


def test_the_recipe_for_scikit_learn_runs(table):
    x, labels, is_member = table
    forest = RandomForestClassifier(n_estimators=5, random_state=0)
    model = forest.fit(x[is_member], labels[is_member])
    evidence, truth = run_recipe(
        "scikit-learn", model=model, x=x, labels=labels, is_member=is_member
    )
    np.testing.assert_array_equal(truth, is_member)
    assert evidence.num_shadows == 16
    lira = next(attack for attack in suite.attacks() if attack.name == "lira")
    assert metrics.membership(lira.run(jax.random.key(0), evidence), truth).auc > 0.6


def test_the_recipe_for_pytorch_runs(table):
    torch = pytest.importorskip("torch")
    x, labels, is_member = table
    model, inputs = torch.nn.Linear(4, 2), torch.as_tensor(x)
    evidence, _ = run_recipe(
        "From any other", model=model, x=inputs, labels=labels, is_member=is_member
    )
    np.testing.assert_allclose(evidence.logits, model(inputs).numpy(force=True), rtol=1e-5)


def test_the_recipe_for_hugging_face_runs(table):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    _, labels, is_member = table
    words = {"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3}
    split = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    split.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=split, pad_token="[PAD]")
    config = transformers.BertConfig(
        vocab_size=4, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=16,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    texts = ["good " * (1 + i % 3) if label else "bad film" for i, label in enumerate(labels)]
    evidence, _ = run_recipe(
        "Hugging Face", model=model, tokenizer=tokenizer, texts=texts, labels=labels,
        is_member=is_member,
    )  # fmt: skip
    assert evidence.logits.shape == (80, 2)


def test_links_lead_to_files_of_the_repository():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        for link in re.findall(r"\]\(([^)#]+)", page.read_text("utf8")):
            assert (page.parent / link).exists(), (page.name, link)
