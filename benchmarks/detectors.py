"""Two ONNX detectors of COCO and a TFLite segmenter, as models for `shiftbench run`.

    shiftbench run -m yolox=benchmarks/detectors.py:yolox,weights=yolox_nano_416.onnx -d yolo:PATH

Boxes are decoded here as each network was trained; torchvision.ops removes duplicates. Weights are
not part of the project.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.models.detection import SSDLite320_MobileNet_V3_Large_Weights
from torchvision.ops import batched_nms

SIDE = 416
STRIDES = (8, 16, 32)
CATEGORIES = SSDLite320_MobileNet_V3_Large_Weights.COCO_V1.meta["categories"]
COCO = [name for name in CATEGORIES if name not in ("__background__", "N/A")]  # 80 classes
VOC = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair",
    "cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa",
    "train", "tvmonitor",
)  # fmt: skip

Detector = Callable[[Tensor], list[dict[str, Tensor]]]


def yolox(weights: str) -> tuple[Detector, dict[str, Any]]:
    """Load YOLOX-Nano: images of 0 to 255, blue first, filled with 114 at the lower right."""
    run, (cells, strides) = _session(weights), _cells()

    def detect(images: Tensor) -> list[dict[str, Tensor]]:
        found = []
        for image in images.flip(1):
            output = run(image[None])[0][0]  # (cells, 85)
            center, size = (output[:, :2] + cells) * strides, output[:, 2:4].exp() * strides
            boxes = torch.cat([center - size / 2, center + size / 2], 1)
            found.append(_nms(boxes, output[:, 4:5] * output[:, 5:], 0.65, least=0.01))
        return found

    facts = {"input_size": SIDE, "mean": 0.0, "std": 1 / 255, "interpolation": "bilinear"}
    return detect, {**facts, "fill": 114, "class_names": COCO, "score_threshold": 0.3}


def nanodet(weights: str) -> tuple[Detector, dict[str, Any]]:
    """Load NanoDet-m: normalized images, blue first, centered in black."""
    run, (cells, strides) = _session(weights), _cells()

    def detect(images: Tensor) -> list[dict[str, Tensor]]:
        found = []
        for image in images.flip(1):
            outputs = run(image[None])
            scores, bins = (torch.cat([o[0] for o in outputs[i : i + 3]]) for i in (0, 3))
            sides = bins.view(-1, 4, 8).softmax(2) @ torch.arange(8.0)  # left, top, right, bottom
            middle, sides = (cells + 0.5) * strides, sides * strides
            boxes = torch.cat([middle - sides[:, :2], middle + sides[:, 2:]], 1)
            found.append(_nms(boxes, scores, 0.6, least=0.05))
        return found

    facts = {"input_size": SIDE, "interpolation": "bilinear", "fill": 0, "centered": True}
    mean, std = (103.53, 116.28, 123.675), (57.375, 57.12, 58.395)  # blue first
    facts |= {key: tuple(x / 255 for x in v[::-1]) for key, v in (("mean", mean), ("std", std))}
    return detect, {**facts, "class_names": COCO, "score_threshold": 0.3}


def deeplab(weights: str) -> tuple[Callable[[Tensor], Tensor], dict[str, Any]]:
    """Load DeepLabV3 with MobileNetV2, of the 21 classes of Pascal VOC."""
    from ai_edge_litert.interpreter import Interpreter

    network = Interpreter(weights, num_threads=1)
    network.allocate_tensors()
    source, result = network.get_input_details()[0], network.get_output_details()[0]

    def segment(images: Tensor) -> Tensor:
        maps = []
        for image in images:
            network.set_tensor(source["index"], image.permute(1, 2, 0)[None].numpy())
            network.invoke()
            maps.append(torch.from_numpy(network.get_tensor(result["index"])[0]).permute(2, 0, 1))
        return torch.stack(maps)

    facts = {"input_size": 257, "mean": 0.5, "std": 0.5, "interpolation": "bilinear", "fill": 127.5}
    return segment, {**facts, "class_names": VOC}


def _session(weights: str) -> Callable[[Tensor], list[Tensor]]:
    """Open an ONNX file: from one image to its outputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # errors: hundreds of warnings about initializers
    session = onnxruntime.InferenceSession(weights, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda image: [
        torch.from_numpy(np.asarray(output)) for output in session.run(None, {name: image.numpy()})
    ]


def _cells() -> tuple[Tensor, Tensor]:
    """Return the x and y of every cell, row by row (cells, 2), and its stride (cells, 1)."""
    cells, strides = [], []
    for stride in STRIDES:
        side = torch.arange(SIDE // stride)
        y, x = torch.meshgrid(side, side, indexing="ij")
        cells.append(torch.stack([x, y], 2).view(-1, 2).float())
        strides.append(torch.full((len(cells[-1]), 1), float(stride)))
    return torch.cat(cells), torch.cat(strides)


def _nms(boxes: Tensor, scores: Tensor, overlap: float, *, least: float) -> dict[str, Tensor]:
    """Return the detections of each class, without those that overlap a better one."""
    cell, label = (scores > least).nonzero(as_tuple=True)
    boxes, scores = boxes[cell], scores[cell, label]
    kept = batched_nms(boxes, scores, label, overlap)
    return {"boxes": boxes[kept], "labels": label[kept], "scores": scores[kept]}
