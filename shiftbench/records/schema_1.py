"""Records of schema 1, read as if they had been written today."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pandas as pd

from shiftbench.shifts.attacks import ATTACKS

if TYPE_CHECKING:
    from shiftbench.records.record import MetricInfo


def upgrade(content: dict[str, Any]) -> dict[str, Any]:
    """The object of a `record.json` with every field in its present place."""
    if content["schema"] != 1:
        return content
    content = dict(content)
    old, scores = dict(content["settings"]), dict(content["scores"])
    images = old.get("images", "")
    everyone = {"images": content["data"]["images"], "digest": images}
    metrics: dict[str, Any] = {
        "accuracy": {"kind": "accuracy", "settings": {}, "scores": ["accuracy"], **everyone}
    }
    for kind in scores.get("consistency", {}):
        metrics[f"consistency_{kind}"] = {
            "kind": "consistency",
            "settings": {
                "views": kind,
                "span": old.get("spans", {}).get(kind, 0),
                "repeats": old.get("repeats", 1),
                "seed": old.get("seed", 0),
            },
            "scores": [f"consistency_{kind}", f"change_{kind}"],
            **everyone,
        }
    curves, maps = {}, {}
    for attack, curve in scores.get("adversarial", {}).items():
        label = _label(attack, old.get("step"))
        stem = f"adversarial_{label}"
        curves[label] = curve
        if attack in scores.get("offsets", {}):
            maps[stem] = scores["offsets"][attack]
        part = "" if old.get("search_limit") is None else f"/{old['search_limit']}/{old['seed']}"
        metrics[stem] = {
            "kind": "adversarial",
            "settings": _search_settings(attack, old, max(map(int, curve), default=0)),
            "scores": [stem],
            "images": next(iter(curve.values()))["n"],
            "digest": f"{images}{part}",
        }
    content["data"] = {**content["data"], "labels": images if old.get("limit") is None else ""}
    content["settings"] = {
        "engine": "compile" if old.get("compile") else "torch",
        **{
            k: old[k]
            for k in ("limit", "search_limit", "seed", "precision", "skip_bad")
            if k in old
        },
    }
    # The mean change of a probability had no interval: it is not a score, and is left out.
    kept = {"accuracy": scores["accuracy"], "consistency": scores.get("consistency", {})}
    content["scores"] = {**kept, "adversarial": curves}
    return {**content, "schema": 2, "metrics": metrics, "maps": maps}


def _label(attack: str, step: str | None) -> str:
    own = ATTACKS.get(attack).step if attack in ATTACKS else None
    return attack if step is None or Fraction(step) == own else f"{attack}[{Fraction(step)}]"


def _search_settings(attack: str, old: Mapping[str, Any], radius: int) -> dict[str, Any]:
    mode = old.get("mode", "exhaustive")
    step = old.get("step") or (ATTACKS.get(attack).step if attack in ATTACKS else 1)
    return {
        "attack": attack,
        "step": str(Fraction(step)),
        "radius": radius,
        "mode": mode,
        "upper_bound": bool(old.get("upper_bound", mode.startswith("sampled"))),
        **({"seed": old.get("seed", 0)} if mode.startswith("sampled") else {}),
    }


def upgrade_samples(samples: pd.DataFrame, metrics: Mapping[str, MetricInfo]) -> pd.DataFrame:
    """A table of images with the columns that say how far each image was measured."""
    searched = samples["searched"] if "searched" in samples else pd.Series(True, samples.index)
    added: dict[str, Any] = {}
    for info in metrics.values():
        settings = info.settings
        if info.kind == "adversarial":
            label = info.scores[0].removeprefix("adversarial_")
            old, new = settings["attack"], label
            if f"{old}_broken_radius" not in samples or f"{new}_reach" in samples:
                continue
            for word in ("broken_radius", "dy", "dx", "prediction", "bitmap"):
                if f"{old}_{word}" in samples:
                    added[f"{new}_{word}"] = samples[f"{old}_{word}"]
            blank = pd.Series(pd.NA, samples.index, dtype="Int64")
            added[f"{new}_reach"] = blank.mask(searched, settings["radius"])
            if settings["upper_bound"]:
                tried = int(settings["mode"].partition(":")[2])
                added[f"{new}_sampled"] = blank.mask(searched, tried)
        elif info.kind == "consistency" and f"draws_{settings['views']}" not in samples:
            kind, repeats = settings["views"], settings["repeats"]
            added[f"draws_{kind}"] = repeats
            if f"agreed_{kind}" not in samples and f"consistent_{kind}" in samples:
                added[f"agreed_{kind}"] = samples[f"consistent_{kind}"].astype(int) * repeats
    return samples.assign(**added).drop(columns="searched", errors="ignore") if added else samples
