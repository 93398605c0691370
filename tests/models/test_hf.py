"""Image classifiers of transformers, built from small configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from shiftbench.errors import ModelError
from shiftbench.models import build_model, load_model

transformers = pytest.importorskip("transformers")


def save(folder: Path, **settings: Any) -> Any:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", **settings
    )
    torch.manual_seed(0)
    model = transformers.ResNetForImageClassification(config).eval()
    model.save_pretrained(folder)
    return model


def test_hf_logits_equal_the_library(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = save(tmp_path / "net", id2label={0: "cat", 1: "dog"})
    loaded = load_model(f"hf:{tmp_path / 'net'}")
    assert "names no mean and std" in caplog.text  # there is no preprocessor_config.json
    assert (loaded.name, loaded.source, loaded.class_names) == (
        "hf:net",
        "huggingface",
        ("cat", "dog"),
    )
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(loaded(images), model(images).logits)


def test_hf_numbered_labels_are_no_class_names(tmp_path: Path) -> None:
    save(tmp_path, num_labels=3)
    assert load_model(f"hf:{tmp_path}").class_names == ()


def test_hf_weights_without_head_raise(tmp_path: Path) -> None:
    save(tmp_path, num_labels=3)
    file = tmp_path / "model.safetensors"
    state = {k: v for k, v in load_file(file).items() if not k.startswith("classifier")}
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"no trained weights for classifier\.1\.bias"):
        load_model(f"hf:{tmp_path}")


def test_hf_build_model_replaces_classes(tmp_path: Path) -> None:
    save(tmp_path, id2label={0: "cat", 1: "dog"})
    built = build_model(f"hf:{tmp_path}+circular", classes=5)
    assert (built.num_classes, built.class_names) == (5, ())
    assert built.layers(torch.rand(1, 3, 64, 64)).shape == (1, 5)


def test_hf_cvt_13_is_built_offline_with_and_without_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.getaddrinfo", None)  # any connection fails
    built = load_model("hf:microsoft/cvt-13,pretrained=false")
    assert (built.num_classes, built.preprocessing.size) == (1000, 224)
    assert built.parameter_count == 19_997_480  # 20 million, as published
    save_file(built.network.state_dict(), tmp_path / "weights.safetensors")
    loaded = load_model("hf:microsoft/cvt-13", checkpoint=tmp_path / "weights.safetensors")
    assert loaded.identity.weights == built.identity.weights


def test_hf_checkpoint_without_configuration_names_a_folder(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "weights.safetensors")
    with pytest.raises(ModelError, match=r"hf:FOLDER") as raised:
        load_model("hf:nobody/nothing", checkpoint=tmp_path / "weights.safetensors")
    assert "--checkpoint" not in str(raised.value)
