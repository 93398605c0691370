"""`repair`: properties of repaired models, and each remedy against a slow reference."""

from __future__ import annotations

import copy
import threading

import fft_reference as reference
import pytest
import timm
import torch
import torch.nn.functional as F
from repair_cases import Residual, photo
from shifted_models import changes, scene
from timm.layers import BlurPool2d, SpaceToDepth, StdConv2d, create_conv2d, create_pool2d
from timm.layers.std_conv import ScaledStdConv2dSame
from torch import Tensor, nn

from aft_models import AftModelsError, repair
from aft_models.layers import fractional_shift, select_polyphase
from aft_models.remedies import REMEDIES
from aft_models.remedies.blurpool import binomial
from aft_models.remedies.canonical import Canonical
from aft_models.remedies.layer import SlidingLayer, sliding
from aft_models.remedies.phases import own_pass
from aft_models.remedies.repair import reports


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


# Properties of repaired models


def test_repair_shared_layers_remain_shared() -> None:
    conv = nn.Conv2d(3, 3, 3, stride=2, padding=1)
    model = nn.Sequential(conv, nn.ReLU(), conv)
    repaired = repair(model, "af")
    assert repaired[0] is repaired[2]
    assert [change.layer for change in reports(repaired)[0].changed] == ["0", "0", "1"]


def test_repaired_layers_use_replaced_weights() -> None:
    model, x = repair(Residual(), "circular+aps").double(), photo()
    with torch.no_grad():
        model.stem.weight = nn.Parameter(torch.zeros_like(model.stem.weight))
        model.stem.bias.zero_()
    assert not model.stem(x).any()


def test_repair_independent_of_order_and_steps() -> None:
    model, x = Residual().double(), photo()
    expected = repair(model, "circular+aps")(x)
    assert torch.equal(repair(model, "aps+circular")(x), expected)
    assert torch.equal(repair(repair(model, "aps"), "circular")(x), expected)
    stepwise = repair(repair(model, "circular"), "aps")
    assert torch.equal(stepwise(x), expected)
    assert [report.remedy for report in reports(stepwise)] == ["circular", "aps"]


def test_reports_list_changed_layers() -> None:
    circular, blurred = reports(repair(Residual(), "circular+blurpool:3"))
    assert [change.layer for change in circular.changed] == ["stem", "branch"]
    assert [change.layer for change in blurred.changed] == ["stem", "branch", "shortcut", "pool"]
    assert blurred.remedy == "blurpool:3"
    assert blurred.needs_finetuning
    assert blurred.unchanged == ()
    assert reports(Residual()) == ()
    assert "sampling=blurpool:3" in repr(repair(Residual(), "blurpool:3").stem)


# Layers

LAYERS = {
    "3x3": nn.Conv2d(4, 6, 3, stride=2, padding=1),
    "unpadded": nn.Conv2d(4, 6, 3, stride=2),
    "patches": nn.Conv2d(4, 6, 2, stride=2),
    "stride 3": nn.Conv2d(4, 6, 5, stride=3, padding=2),
    "two strides": nn.Conv2d(4, 6, 3, stride=(2, 1), padding=1),
    "pointwise": nn.Conv2d(4, 6, 1, stride=2),
    "dilated": nn.Conv2d(4, 6, 3, stride=2, padding=2, dilation=2),
    "depthwise": nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=4),
    "reflecting": nn.Conv2d(4, 4, 3, stride=2, padding=1, padding_mode="reflect"),
    "same": create_conv2d(4, 6, 3, stride=2, padding="same"),
    "standardized": StdConv2d(4, 6, 3, stride=2),
    "standardized same": ScaledStdConv2dSame(4, 6, 3, stride=2),
    "max": nn.MaxPool2d(3, stride=2, padding=1),
    "max ceil": nn.MaxPool2d(3, stride=2, ceil_mode=True),
    "max same": create_pool2d("max", 3, stride=2, padding="same"),
    "average": nn.AvgPool2d(2),
    "average of what is there": nn.AvgPool2d(3, 2, padding=1, count_include_pad=False),
    "average ceil": nn.AvgPool2d(2, ceil_mode=True),
    "average ceil, padded": nn.AvgPool2d(3, 2, padding=1, ceil_mode=True),
    "average ceil of what is there": nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False),
    "average by a divisor": nn.AvgPool2d(3, 2, padding=1, ceil_mode=True, divisor_override=5),
    "average same": create_pool2d("avg", 3, 2, padding="same", count_include_pad=False),
    "max ceil 2": nn.MaxPool2d(2, ceil_mode=True),
    "blur": BlurPool2d(4, filt_size=3, stride=2),
}


@pytest.mark.parametrize("size", [(8, 12), (7, 9)])
@pytest.mark.parametrize("name", LAYERS)
def test_sliding_layer_first_component_equals_original(name: str, size: tuple[int, int]) -> None:
    layer = copy.deepcopy(LAYERS[name]).double()
    x = torch.randn(2, 4, *size, dtype=torch.float64)
    expected = layer(x)
    repaired = sliding(copy.deepcopy(layer))
    torch.testing.assert_close(repaired(x), expected)
    sy, sx = repaired.window.stride
    every = repaired.at_every_pixel(x)
    assert every.shape[2:] == (sy * expected.shape[2], sx * expected.shape[3])
    torch.testing.assert_close(every[:, :, ::sy, ::sx], expected)
    assert torch.isfinite(every).all()
    assert repaired.window.outputs(size) == tuple(expected.shape[2:])


@pytest.mark.parametrize("name", LAYERS)
def test_circular_layers_are_equivariant(name: str) -> None:
    layer = repair(nn.Sequential(copy.deepcopy(LAYERS[name]).double(), BIG), "circular")[0]
    x = torch.randn(2, 4, 6, 12, dtype=torch.float64)
    every = layer.at_every_pixel(x)
    assert every.shape[2:] == x.shape[2:]
    rolled = layer.at_every_pixel(x.roll((1, 5), (2, 3)))
    torch.testing.assert_close(rolled, every.roll((1, 5), (2, 3)))


BIG = nn.Conv2d(4, 4, 3, padding=1)  # something for `circular` to change in any case


@pytest.mark.parametrize("size", [(2, 3), (5, 4), (1, 1)])
def test_circular_kernel_wider_than_map_wraps(size: tuple[int, int]) -> None:
    conv = nn.Conv2d(2, 2, 7, padding=3).double()
    x = torch.randn(1, 2, *size, dtype=torch.float64)
    plain = F.conv2d(x.repeat(1, 1, 9, 9), conv.weight, conv.bias, padding=3)
    y, z = (4 * n for n in size)
    expected = plain[:, :, y : y + size[0], z : z + size[1]]
    torch.testing.assert_close(repair(nn.Sequential(conv), "circular")(x), expected)


# Blur pooling


def slow_blur(layer: SlidingLayer, x: Tensor, taps: int) -> Tensor:
    """Apply stride one and the filter with circular padding, then keep every n-th pixel."""
    y = layer.at_every_pixel(x)
    sy, sx = layer.window.stride
    for axis, stride in ((2, sy), (3, sx)):
        if stride > 1:
            offsets = range(-((taps - 1) // 2), taps // 2 + 1)
            parts = zip(binomial(taps).tolist(), offsets, strict=True)
            y = sum(weight * y.roll(-offset, axis) for weight, offset in parts)
    return y[:, :, ::sy, ::sx]


@pytest.mark.parametrize("taps", [2, 3, 4, 7])
@pytest.mark.parametrize("name", sorted(set(LAYERS) - {"reflecting"}))
def test_blurpool_equals_slow_reference(name: str, taps: int) -> None:
    model = nn.Sequential(copy.deepcopy(LAYERS[name]).double(), BIG.double())
    layer = repair(model, f"circular+blurpool:{taps}")[0]
    x = torch.randn(2, 4, 12, 12, dtype=torch.float64, requires_grad=True)
    wrt = [x, *layer.parameters()]
    fast, slow = layer(x), slow_blur(layer, x, taps)
    torch.testing.assert_close(fast, slow)
    if layer.window.kind != "max":
        grads = [torch.autograd.grad(y.square().sum(), wrt) for y in (fast, slow)]
        torch.testing.assert_close(*grads)


def test_blurpool_keeps_zero_padding() -> None:
    conv = nn.Conv2d(2, 3, 3, stride=2, padding=1).double()
    x = torch.randn(1, 2, 8, 8, dtype=torch.float64)
    wide = F.conv2d(F.pad(x, (5, 5, 5, 5)), conv.weight, conv.bias)  # from pixel -4 on
    kernel = torch.outer(binomial(3), binomial(3)).expand(3, 1, 3, 3)
    expected = F.conv2d(wide, kernel, groups=3)[:, :, 3:11:2, 3:11:2]  # from pixel -3 on
    torch.testing.assert_close(repair(nn.Sequential(conv), "blurpool:3")(x), expected)


# Cut spectra


@pytest.mark.parametrize("name", ["3x3", "patches", "pointwise", "depthwise", "max", "average"])
def test_flc_equals_slow_reference(name: str) -> None:
    model = nn.Sequential(copy.deepcopy(LAYERS[name]).double(), BIG.double())
    layer = repair(model, "circular+flc")[0]
    x = torch.randn(2, 4, 12, 20, dtype=torch.float64)
    full = copy.copy(layer.bare[1]).forward(layer.extend(x, full=True))
    torch.testing.assert_close(layer(x), reference.fft_downsample(full, (6, 10)))


def test_flc_linear_network_equivariant_to_fractional_shifts() -> None:
    layers = [nn.Conv2d(3, 4, 3, 2, 1), nn.AvgPool2d(2), nn.Conv2d(4, 4, 1, 2)]
    model = repair(nn.Sequential(*layers).double(), "circular+flc")
    x = photo(32)
    moved = fractional_shift(model(x), 0.3 / 8, -2.7 / 8)
    torch.testing.assert_close(model(fractional_shift(x, 0.3, -2.7)), moved)


# Polyphase components


@pytest.mark.parametrize("name", ["3x3", "patches", "pointwise", "depthwise", "stride 3", "max"])
def test_aps_equals_slow_reference(name: str) -> None:
    model = nn.Sequential(copy.deepcopy(LAYERS[name]).double(), BIG.double())
    repaired = repair(model, "circular+aps")
    layer = repaired[0]
    x = torch.randn(3, 4, 12, 12, dtype=torch.float64, requires_grad=True)
    every = layer.at_every_pixel(x)
    expected = select_polyphase(every, every, layer.window.stride[0])
    with own_pass(repaired), torch.no_grad():
        torch.testing.assert_close(layer(x), expected)
    with own_pass(repaired):  # the other path: choose first, then compute at the chosen component
        got = layer(x)
    torch.testing.assert_close(got, expected)
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (got, expected)]
    torch.testing.assert_close(*gradients)


class Hourglass(nn.Module):
    """Network that restores the positions of pixels."""

    def __init__(self) -> None:
        super().__init__()
        first, second = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 2, 1)
        self.down = nn.Sequential(first, nn.ReLU(), second, nn.ReLU())
        self.up = nn.Upsample(scale_factor=4)
        self.beside = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return (self.up(self.down(x)) * self.beside(x)).mean((2, 3))


def pooled(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())


EXACT = {
    "branches": Residual(),
    "up-sampling": Hourglass(),
    "blocks": pooled(nn.PixelUnshuffle(4), nn.Conv2d(48, 4, 3, padding=1)),
    "blocks of timm": pooled(SpaceToDepth(4), nn.Conv2d(48, 4, 3, padding=1)),
    "flattened head": nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64, 5)
    ),
    "wraps round": pooled(nn.Conv2d(3, 4, 2, padding=1, padding_mode="circular")),
    "wraps round, strided": pooled(nn.Conv2d(3, 4, 4, 2, padding=2, padding_mode="circular")),
    "wraps round before": pooled(nn.CircularPad2d(1), nn.Conv2d(3, 4, 3)),
}


@pytest.mark.parametrize("name", EXACT)
def test_aps_invariant_to_integer_shifts(name: str) -> None:
    model, x = EXACT[name].double(), photo(count=8)
    steady = repair(model, "circular+aps", input_size=x.shape[-1])
    assert max(changes(steady, x, [(1, 0), (0, 1), (2, 3), (-5, 7)])) < 1e-12


def test_aps_separate_choices_per_branch_are_not_invariant() -> None:
    apart, x = repair(Residual().double(), "circular+aps"), photo(count=8)
    apart.shortcut.sampler = copy.deepcopy(apart.shortcut.sampler)  # a pass of its own
    apart.shortcut.sampler.forward_pass = type(apart.stem.sampler.forward_pass)()
    assert max(changes(apart, x, [(1, 0), (0, 1), (3, 2)])) > 1e-3


def test_forward_pass_ends_without_root_module() -> None:
    class Headless(Residual):
        def features(self, x: Tensor) -> Tensor:
            x = self.act(self.stem(x))
            return self.branch(x) + self.shortcut(x)

    model = repair(Headless().double(), "circular+aps")
    first, second = photo(16), photo(8)  # the second begins at a size of the first
    expected = [copy.deepcopy(model).features(x) for x in (first, second)]
    for x, answer in zip((first, second, first), [*expected, expected[0]], strict=True):
        assert torch.equal(model.features(x), answer)


def test_own_pass_separates_single_layer_calls() -> None:
    model, x = repair(Residual().double(), "circular+aps"), photo(count=8)
    expected = model(x)

    def call_again(layer: nn.Module, inputs: tuple[Tensor], _: Tensor) -> None:
        with own_pass(model):
            layer.forward(inputs[0].roll(1, 2))

    for layer in (model.stem, model.branch, model.shortcut):
        layer.register_forward_hook(call_again)
    assert torch.equal(model(x), expected)


def test_forward_pass_is_thread_local() -> None:
    model = repair(Residual().double(), "circular+aps").eval()
    images = [photo(count=1) for _ in range(4)]
    expected = [model(x) for x in images]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(20):
            if not torch.equal(model(images[i]), expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("padding", [1, (-1, 1, -1, 1), (2, 0, 1, 1)])
def test_circular_padding_layer_becomes_roll(padding: int | tuple[int, ...]) -> None:
    pad, conv = nn.ZeroPad2d(padding), nn.Conv2d(3, 4, 3).double()
    x = photo(12)
    inside = conv(pad(x))[:, :, 2:7, 2:7]  # far from the border
    model = repair(nn.Sequential(pad, conv), "circular")
    torch.testing.assert_close(model(x)[:, :, 2:7, 2:7], inside)
    assert model(x).shape[2:] == x.shape[2:]


# Alias-free


def test_af_is_exact_for_polynomials() -> None:
    class Square(nn.ReLU):
        def forward(self, x: Tensor) -> Tensor:
            return x * x

    Square.__module__ = nn.ReLU.__module__  # classified as an activation
    layers = [nn.Conv2d(3, 4, 3, 2, 1), Square(), nn.Conv2d(4, 4, 3, 2, 1), nn.AdaptiveAvgPool2d(1)]
    model = repair(nn.Sequential(*layers).double(), "af")
    for layer in model:
        layer.pointwise = None  # not the fast form of its name
    x = scene(32, 32)
    assert max(changes(model, x, [(0.5, 0), (0.27, -1.81)])) < 1e-12


@pytest.mark.parametrize("kind", [nn.ReLU, nn.ReLU6, nn.SiLU, nn.Hardswish, nn.GELU, nn.PReLU])
def test_af_activations_equal_their_slow_form(kind: type[nn.Module]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1, stride=2), kind()).double()
    act = repair(model, "af")[1]
    x = (3 * torch.randn(2, 4, 12, 20, dtype=torch.float64)).requires_grad_()
    slow = reference.fft_activation(x, model[1], up=act.up)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        fast = act(x.contiguous(memory_format=memory_format))
        torch.testing.assert_close(fast, slow)
        grads = [torch.autograd.grad(y.square().sum(), x, retain_graph=True) for y in (fast, slow)]
        torch.testing.assert_close(*grads)


def test_af_maxima_move_with_steps_of_their_finer_grid() -> None:
    pool = repair(nn.Sequential(nn.MaxPool2d(3, 2, 1)).double(), "af:3")[0]
    x = scene(16, 16)
    for distance in (0.25, 0.5, 2):  # the grid is 4 times finer
        moved = fractional_shift(pool(x), distance / 2, 0)
        torch.testing.assert_close(pool(fractional_shift(x, distance, 0)), moved)


def test_af_norms_divide_by_one_deviation() -> None:
    for name in ("test_convnext", "test_efficientnet_ln"):
        model = repair(timm.create_model(name), "af")
        assert any("deviation" in change.what for change in reports(model)[0].changed)
    norm = repair(nn.Sequential(nn.Conv2d(3, 4, 2, 2), nn.LayerNorm(4)).double(), "af")[1]
    x = torch.randn(2, 5, 6, 4, dtype=torch.float64)
    centered = x - x.mean(-1, keepdim=True)
    expected = centered / (centered.square().mean((1, 2, 3), keepdim=True) + norm.eps).sqrt()
    torch.testing.assert_close(norm(x), expected)


# Input remedies

ANYWHERE = [(1, 0), (0.5, 0.5), (0.27, -1.81), (7.3, 5.01)]


def tiny_vit(**options: object) -> nn.Module:
    return timm.create_model(
        "test_vit", img_size=32, patch_size=4, num_classes=10, **options
    ).double()


def test_canonical_makes_a_vit_ignore_every_shift() -> None:
    model, x = tiny_vit().eval(), scene(32, 32)
    assert min(changes(model, x, ANYWHERE)) > 1e-3
    assert max(changes(repair(model, "canonical"), x, ANYWHERE)) < 1e-10
    noisy = x + photo(32)  # integer shifts preserve even the Nyquist frequency
    assert max(changes(repair(model, "canonical"), noisy, [(1, 0), (5, -9)])) < 1e-10


@pytest.mark.parametrize("size", [(32, 32), (15, 20)])
def test_canonical_images_have_first_harmonics_of_phase_zero(size: tuple[int, int]) -> None:
    x = scene(*size)
    spectrum = torch.fft.fft2(Canonical().show(x)[0].sum(1))
    for first in (spectrum[:, 1, 0], spectrum[:, 0, 1]):
        torch.testing.assert_close(first.angle(), torch.zeros_like(first.angle()))
    torch.testing.assert_close(Canonical().show(Canonical().show(x)[0])[0], Canonical().show(x)[0])


def test_canonical_leaves_an_axis_without_first_harmonic() -> None:
    x = scene(16, 16)
    spectrum = torch.fft.fft2(x)
    spectrum[:, :, [1, -1], 0] = 0
    x = torch.fft.ifft2(spectrum).real
    moved = Canonical().show(x)[0]
    assert torch.allclose(moved.sum(3), x.sum(3))  # not shifted along the rows
    assert not torch.allclose(moved, x)


def test_vote_equals_mean_probability() -> None:
    model, x = Residual().double(), photo()
    views = [x.roll((y, z), (2, 3)) for y in (-1, 0, 1) for z in (-1, 0, 1)]
    expected = torch.stack([model(view).softmax(1) for view in views]).mean(0)
    torch.testing.assert_close(repair(model, "vote:3")(x).softmax(1), expected)
    halves = [fractional_shift(x, y, z) for y in (-0.5, 0.5) for z in (-0.5, 0.5)]
    expected = torch.stack([model(view).softmax(1) for view in halves]).mean(0)
    torch.testing.assert_close(repair(model, "vote:2")(x).softmax(1), expected)


# Obstacles


def test_reports_list_resampling_without_window() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.PixelUnshuffle(2), nn.LPPool2d(2, 2))
    for remedy, left in (("aps", ["2"]), ("flc", ["1", "2"])):
        report = reports(repair(model, remedy))[0]
        assert [obstacle.where for obstacle in report.unchanged] == left
    widening = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ConvTranspose2d(4, 4, 4, 2, 1))
    for report in reports(repair(widening, "circular+aps")):
        assert [obstacle.where for obstacle in report.unchanged] == ["1"]


class Functional(nn.Module):
    """Network that sub-samples, pads and activates in its own code."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.last = nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv(x), 2))
        x = self.last(F.pad(x, (1, 1, 1, 1)))
        return x[:, :, ::2, ::2].mean((2, 3))


def test_reports_list_functional_operations() -> None:
    operators = {
        remedy: [o.why.split()[0] for o in reports(repair(Functional(), remedy))[0].unchanged]
        for remedy in ("circular", "aps", "af")
    }
    assert operators["circular"] == ["pad"]
    assert operators["aps"] == ["max_pool2d", "slicing"]
    assert sorted(operators["af"]) == ["max_pool2d", "pad", "relu", "slicing"]
    where = reports(repair(Functional(), "circular"))[0].unchanged[0].where
    module, _, line = where.partition(", line ")
    assert module == __name__
    assert line.isdigit()


def test_repair_leaves_layers_with_custom_forward() -> None:
    class Odd(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.flip(2))

    class Even(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    model = nn.Sequential(Odd(3, 4, 3, 2, 1), Even(4, 4, 3, 2, 1))
    report = reports(repair(model, "aps"))[0]
    assert [change.layer for change in report.changed] == ["1"]
    assert [obstacle.where for obstacle in report.unchanged] == ["0"]


def test_repair_keeps_batch_statistics_and_modes() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4)).train()
    repaired = repair(model, "aps")
    assert repaired.training
    assert repaired[1].training
    assert int(repaired[1].num_batches_tracked) == 0


# Invalid input


@pytest.mark.parametrize(
    ("remedies", "message"),
    [
        ("cirular", "unknown remedy 'cirular'. Did you mean 'circular'"),
        ("aps+af", "aps and af contradict each other, since both decide how layers sub-s"),
        ("canonical+vote", "contradict each other, since both decide the position of the image"),
        ("aps+aps", "aps is given twice"),
        ("blurpool:9", "blurpool takes the taps of its filter, 2 to 7, got '9'"),
        ("blurpool:x", "2 to 7, got 'x'"),
        ("vote:", "vote takes the side of the grid of shifts, 2 to 15, got ''"),
        ("aps:2", "aps takes no numbers, got 'aps:2'"),
        ("", "no remedy given. Choose from "),
        ("vote:3:4", "vote takes 1 number, got 'vote:3:4'"),
    ],
)
def test_repair_invalid_remedies_raises(remedies: str, message: str) -> None:
    with pytest.raises(AftModelsError) as caught:
        repair(Residual(), remedies)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


LAYER_REMEDIES = [name for name, r in REMEDIES.items() if r.group in ("padding", "sampling")]


@pytest.mark.parametrize("remedy", LAYER_REMEDIES)
def test_repair_without_changes_raises(remedy: str) -> None:
    flat = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1))
    with pytest.raises(AftModelsError, match=f"{remedy} finds nothing to change in Sequential"):
        repair(flat, remedy)


def test_repair_twice_raises() -> None:
    model = repair(Residual(), "circular+aps")
    with pytest.raises(AftModelsError, match="aps is given twice"):
        repair(model, "aps")
    with pytest.raises(AftModelsError, match="contradict"):
        repair(model, "blurpool")
    part = nn.Sequential(repair(nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1)), "aps"))
    with pytest.raises(AftModelsError, match=r"0\.0 is repaired with aps already"):
        repair(part, "flc")


class Padded(nn.Sequential):
    """Network that pads in its own code."""

    def forward(self, x: Tensor) -> Tensor:
        return self[0](F.pad(x, (0, 1, 0, 1))) + self[1](x)  # 2 x 2 windows beside 3 x 3


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (  # 8 pixels give 3, and 4 with circular padding
            nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.Flatten(), nn.Linear(4 * 9, 2)),
            "circular does not fit Sequential: repaired, it does",
        ),
        (
            Padded(nn.Conv2d(3, 4, 2), nn.Conv2d(3, 4, 3, padding=1)),
            "since no remedy changes pad in the model's own code",
        ),
    ],
)
def test_repair_incompatible_model_raises(model: nn.Module, message: str) -> None:
    with pytest.raises(AftModelsError, match=message):
        repair(model, "circular", input_size=8)


def test_input_remedies_invalid_images_raise() -> None:
    with pytest.raises(AftModelsError, match="expected floating-point images"):
        repair(Residual(), "canonical")(torch.zeros(3, 8, 8))
    with pytest.raises(
        AftModelsError, match=r"expected logits \(B, classes\) from the model for v"
    ):
        repair(nn.Sequential(nn.Conv2d(3, 4, 1)), "vote")(torch.zeros(1, 3, 8, 8))


def test_repair_unsuitable_input_size_reports_obstacle() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Flatten(), nn.Linear(4 * 16, 2))
    unchanged = reports(repair(model, "aps"))[0].unchanged
    assert "does not take an image of shape (1, 3, 224, 224)" in unchanged[0].why
    assert reports(repair(model, "aps", input_size=8))[0].unchanged == ()
