"""A remedy is a suffix of any model's name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import aft_models
from shiftbench.errors import ModelError, UsageError
from shiftbench.models import load_model

NAME = "timm:resnet10t,pretrained=false"


def test_a_repaired_model_has_its_own_name_and_digest_and_the_same_weights() -> None:
    plain, repaired = load_model(NAME), load_model(f"{NAME}+circular+aps")
    assert repaired.name == f"{NAME}+circular+aps"
    assert repaired.digest != plain.digest
    assert repaired.parameters == plain.parameters
    ours, theirs = plain.module.state_dict(), repaired.module.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    image = torch.rand(1, 3, 64, 64)
    for dy, dx in ((1, 0), (3, 5)):
        moved = repaired(image.roll((dy, dx), (-2, -1)))
        torch.testing.assert_close(moved, repaired(image), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(plain(image.roll(1, -1)), plain(image), rtol=1e-3, atol=1e-4)


def test_learned_remedies_need_their_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="learned parameters that no weights fill"):
        load_model(f"{NAME}+lps")
    network = load_model(NAME).network
    trained = aft_models.repair(network, "lps", image=torch.zeros(1, 3, 64, 64))
    state = {key: value.clone().add_(1) for key, value in trained.state_dict().items()}
    save_file(state, tmp_path / "lps.safetensors")
    loaded = load_model("timm:resnet10t+lps", checkpoint=tmp_path / "lps.safetensors")
    kept = loaded.network.state_dict()
    assert all(torch.equal(kept[key], value) for key, value in state.items())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{NAME}+blurpol", "unknown remedy 'blurpol'. Did you mean 'blurpool'"),
        (f"{NAME}+aps+af", "contradict each other"),
        (f"{NAME}+blurpool:99", "2 to 7"),
        ("timm:vit_tiny_patch16_224,pretrained=false,depth=1+circular", "nothing to change"),
    ],
)
def test_remedies_that_do_not_fit_are_one_sentence(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        load_model(text)
    assert "\n" not in str(caught.value)
