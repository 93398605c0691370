"""Registration with timm: any order of imports, and no torch before it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(code: str) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "imports",
    [
        "import aft_models, timm",
        "import timm, aft_models",
        "import timm.layers, aft_models",
        "import aft_models.xcit, timm",
        "import aft_models.layers.norm, timm",
        "from aft_models import repair; import timm",
        "from aft_models.remedies import REMEDIES; import timm.models.xcit, timm",
    ],
)
def test_presets_are_registered_in_any_import_order(imports: str) -> None:
    run(
        f"{imports}\n"
        "model = timm.create_model('xcit_nano_12_p16_af')\n"
        "assert type(model).__module__ == 'aft_models.xcit'\n"
        "assert len(timm.list_models('xcit*_af*')) == 48\n"
        "assert timm.is_model_pretrained('xcit_pico_6_p8.scenes')\n"
    )


@pytest.mark.parametrize(
    "code",
    [
        "import aft_models",
        "from aft_models import PRESETS, AftModelsError, list_weights; list_weights()",
        "from aft_models.cards import weights_card; weights_card('xcit_pico_6_p8.scenes')",
        "from aft_models.preprocessing import Preprocessing; Preprocessing(224).input_size",
        "import shiftbench.geometry, shiftbench.identity, shiftbench.models",
    ],
)
def test_import_needs_no_torch(code: str) -> None:
    run(f"{code}\nimport sys\nassert 'torch' not in sys.modules and 'timm' not in sys.modules")


def test_unknown_attribute_raises() -> None:
    import aft_models

    with pytest.raises(AttributeError, match="has no attribute 'rapair'"):
        _ = aft_models.rapair  # type: ignore[attr-defined]
    assert set(aft_models.__all__) <= set(dir(aft_models))
    assert all(getattr(aft_models, name) is not None for name in aft_models.__all__)
