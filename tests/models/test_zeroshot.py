"""Zero-shot classifiers compared with a slow reference, on small models built from configs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision import transforms as T

from shiftbench.errors import ModelError, UsageError
from shiftbench.models import load_model
from shiftbench.models.sources.zeroshot import encode_classes

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

CLASSES = ("tench", "goldfish", "great white shark")
PROMPTS = ("a photo of a {}", "one {} in a drawing")
SMALL = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def save_tokenizer(folder: Path) -> None:
    words = " ".join((*CLASSES, *PROMPTS)).replace("{}", "").replace(".", "").split()
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<unk>", *dict.fromkeys(words)])}
    model = tokenizers.models.WordLevel({**vocabulary, "<eos>": 39}, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", 39)]
    )  # CLIP reads the features of a text at its end
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>"
    ).save_pretrained(folder)


@pytest.fixture(scope="module", params=["CLIP", "Siglip"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a small model with random weights in the format of the hub."""
    kind = request.param
    place: Path = tmp_path_factory.mktemp(kind.lower())
    text = {**SMALL, "vocab_size": 40, "max_position_embeddings": 12}
    text |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 39}
    vision = {**SMALL, "image_size": 32, "patch_size": 8}
    config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=vision)
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}Model")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    model.save_pretrained(place)
    save_tokenizer(place)
    size = {"shortest_edge": 32} if kind == "CLIP" else {"height": 32, "width": 32}
    crop = {"crop_size": 32} if kind == "CLIP" else {}
    getattr(transformers, f"{kind}ImageProcessor")(size=size, **crop).save_pretrained(place)
    return place


def features(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.pooler_output


def slow_logits(folder: Path, images: Tensor, prompts: tuple[str, ...]) -> Tensor:
    """Compute logits one image, one class and one prompt at a time."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = []
    with torch.no_grad():
        bias = getattr(model, "logit_bias", torch.zeros(1))
        for image in images:
            seen = features(model.get_image_features(pixel_values=image[None]))[0]
            row = []
            for name in CLASSES:
                total = torch.zeros_like(seen)
                for prompt in prompts:
                    fill = {"padding": "max_length", "max_length": 12} if bias.any() else {}
                    words = tokenizer(prompt.format(name), return_tensors="pt", **fill)
                    text = features(model.get_text_features(**words))[0]
                    total += text / text.norm() / len(prompts)
                cosine = (seen @ total) / seen.norm() / total.norm()
                row.append(model.logit_scale.exp() * cosine + bias)
            rows.append(torch.stack(row).flatten())
    return torch.stack(rows)


@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS])
def test_zeroshot_logits_equal_slow_scaled_similarities(
    folder: Path, prompts: tuple[str, ...]
) -> None:
    model = load_model(f"zeroshot:{folder},prompt={prompts!r}", class_names=CLASSES)
    assert (model.num_classes, model.class_names, model.source) == (3, CLASSES, "zeroshot")
    assert str(folder.parent) not in model.name
    assert model.preprocessing.input_size == 32
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(model(images), slow_logits(folder, images, prompts))


def test_zeroshot_prompts_and_classes_change_identity(folder: Path) -> None:
    name = f"zeroshot:{folder}"
    plain = load_model(name, class_names=CLASSES)
    other = load_model(f"{name},prompt='one {{}} in a drawing'", class_names=CLASSES)
    assert plain.identity.changed(other.identity) == ["prompts", "logits"]
    assert plain.identity.digest != other.identity.digest
    fewer = load_model(name, class_names=CLASSES[:2])
    assert "classes" in plain.identity.changed(fewer.identity)
    wnids = load_model(name, class_names=("n01440764", "n01443537", "n01484850"))
    assert plain.identity.changed(wnids.identity) == []
    repaired = load_model(f"{name}+vote", class_names=CLASSES)
    assert repaired.name == f"zeroshot:{folder.name}+vote"


@pytest.mark.parametrize(
    ("options", "names", "words"),
    [
        (",prompt=''", CLASSES, "expected a prompt with {} in place of the class"),
        (",prompt='a photo'", CLASSES, "got 'a photo'"),
        (",prompt=()", CLASSES, r"got ()"),
        ("", (), "the data has none: choose data with class names"),
        ("", ("0", "1", "2"), "the data has none"),
    ],
)
def test_zeroshot_invalid_prompts_or_classes_raise(
    options: str, names: tuple[str, ...], words: str, folder: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        load_model(f"zeroshot:{folder}{options}", class_names=names)
    assert words in str(caught.value)


def test_zeroshot_model_without_text_tower_raises(folder: Path, tmp_path: Path) -> None:
    config = transformers.ViTConfig(**SMALL, image_size=32, patch_size=8)
    transformers.ViTModel(config).save_pretrained(tmp_path / "vit")
    with pytest.raises(ModelError, match=r"with a text tower .* got a ViTModel"):
        load_model(f"zeroshot:{tmp_path / 'vit'}", class_names=CLASSES)
    with pytest.raises(ModelError, match=r"equal features for 'tench' and 'emu'.*tokenizer"):
        encode_classes(lambda texts: torch.ones(len(texts), 4), ["tench", "emu"], PROMPTS)


def test_zeroshot_weights_not_fitting_config_raise(folder: Path, tmp_path: Path) -> None:
    model = transformers.AutoModel.from_pretrained(folder)
    key = "text_model.final_layer_norm.weight"
    for change, words in (
        ({}, f"no trained weights for {key}"),
        ({key: torch.zeros(3)}, rf"do not fit its config\.json: {key} \(3,\) instead of \(16,\)"),
    ):
        state = {k: v for k, v in model.state_dict().items() if k != key}
        model.save_pretrained(tmp_path, state_dict={**state, **change})
        with pytest.raises(ModelError, match=words):
            load_model(f"zeroshot:{tmp_path}", class_names=CLASSES)


class OpenClip(nn.Module):
    """Model with the interface of open_clip."""

    def __init__(self) -> None:
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(2.0))
        self.image, self.text = nn.Linear(3, 8), nn.Embedding(300, 8)

    def encode_image(self, images: Tensor) -> Tensor:
        return self.image(images.mean((2, 3)))  # type: ignore[no-any-return]

    def encode_text(self, tokens: Tensor) -> Tensor:
        return self.text(tokens).mean(1)  # type: ignore[no-any-return]


def test_zeroshot_open_clip_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ModelError, match=r"needs open_clip: pip install 'shiftbench\[clip\]'"):
        load_model("zeroshot:open_clip:ViT-B-32", class_names=CLASSES)
    model = OpenClip()
    transform = T.Compose([T.Resize(32), T.CenterCrop(32), T.ToTensor()])

    def tokenize(texts: list[str]) -> Tensor:
        return torch.tensor([[ord(letter) for letter in f"{text:40.40}"] for text in texts])

    library = SimpleNamespace(
        create_model_and_transforms=lambda name, pretrained: (model, None, transform),
        get_tokenizer=lambda name: tokenize,
    )
    monkeypatch.setitem(sys.modules, "open_clip", library)
    loaded = load_model("zeroshot:open_clip:ViT-B-32,pretrained=x", class_names=CLASSES)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        texts = model.encode_text(tokenize([f"a photo of a {name}." for name in CLASSES]))
        cosines = torch.cosine_similarity(model.encode_image(images)[:, None], texts[None], dim=-1)
        torch.testing.assert_close(loaded(images), model.logit_scale.exp() * cosines)
