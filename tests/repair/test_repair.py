"""The laws of repair: what stays of a model, and what each remedy makes of its layers."""

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
from aft_models.repair import (
    REMEDIES,
    own_pass,
    reports,
    untrained,
)
from aft_models.repair.blurpool import binomial
from aft_models.repair.canonical import Canonical
from aft_models.repair.layer import SlidingLayer, sliding


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


# What stays of a model


def test_shared_layers_stay_shared() -> None:
    conv = nn.Conv2d(3, 3, 3, stride=2, padding=1)
    model = nn.Sequential(conv, nn.ReLU(), conv)
    repaired = repair(model, "af")
    assert repaired[0] is repaired[2]
    assert [change.layer for change in reports(repaired)[0].changed] == ["0", "0", "1"]


def test_weights_that_move_take_the_repair_along() -> None:
    model, x = repair(Residual(), "circular", "aps").double(), photo()
    with torch.no_grad():
        model.stem.weight = nn.Parameter(torch.zeros_like(model.stem.weight))
        model.stem.bias.zero_()
    assert not model.stem(x).any()


def test_order_does_not_matter_and_steps_add_up() -> None:
    model, x = Residual().double(), photo()
    expected = repair(model, "circular", "aps")(x)
    assert torch.equal(repair(model, "aps+circular")(x), expected)
    assert torch.equal(repair(repair(model, "aps"), "circular")(x), expected)
    stepwise = repair(repair(model, "circular"), "aps")
    assert torch.equal(stepwise(x), expected)
    assert [report.remedy for report in reports(stepwise)] == ["circular", "aps"]


def test_a_report_says_what_was_done() -> None:
    circular, blurred = reports(repair(Residual(), "circular", "blurpool:3"))
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
def test_the_first_component_is_the_layer_as_it_was(name: str, size: tuple[int, int]) -> None:
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
def test_on_a_torus_every_pixel_is_alike(name: str) -> None:
    layer = repair(nn.Sequential(copy.deepcopy(LAYERS[name]).double(), BIG), "circular")[0]
    x = torch.randn(2, 4, 6, 12, dtype=torch.float64)
    every = layer.at_every_pixel(x)
    assert every.shape[2:] == x.shape[2:]
    rolled = layer.at_every_pixel(x.roll((1, 5), (2, 3)))
    torch.testing.assert_close(rolled, every.roll((1, 5), (2, 3)))


BIG = nn.Conv2d(4, 4, 3, padding=1)  # something for `circular` to change in any case


@pytest.mark.parametrize("size", [(2, 3), (5, 4), (1, 1)])
def test_a_kernel_wider_than_its_map_goes_round(size: tuple[int, int]) -> None:
    conv = nn.Conv2d(2, 2, 7, padding=3).double()
    x = torch.randn(1, 2, *size, dtype=torch.float64)
    plain = F.conv2d(x.repeat(1, 1, 9, 9), conv.weight, conv.bias, padding=3)
    y, z = (4 * n for n in size)
    expected = plain[:, :, y : y + size[0], z : z + size[1]]
    torch.testing.assert_close(repair(nn.Sequential(conv), "circular")(x), expected)


# Blur pooling


def slow_blur(layer: SlidingLayer, x: Tensor, taps: int) -> Tensor:
    """Stride one on a torus, the filter on a torus, every so many-th pixel."""
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
def test_blurpool_equals_its_slow_form(name: str, taps: int) -> None:
    model = nn.Sequential(copy.deepcopy(LAYERS[name]).double(), BIG.double())
    layer = repair(model, "circular", f"blurpool:{taps}")[0]
    x = torch.randn(2, 4, 12, 12, dtype=torch.float64, requires_grad=True)
    wrt = [x, *layer.parameters()]
    fast, slow = layer(x), slow_blur(layer, x, taps)
    torch.testing.assert_close(fast, slow)
    if layer.window.kind != "max":
        grads = [torch.autograd.grad(y.square().sum(), wrt) for y in (fast, slow)]
        torch.testing.assert_close(*grads)


def test_blurpool_keeps_the_zeros_beyond_the_border() -> None:
    conv = nn.Conv2d(2, 3, 3, stride=2, padding=1).double()
    x = torch.randn(1, 2, 8, 8, dtype=torch.float64)
    wide = F.conv2d(F.pad(x, (5, 5, 5, 5)), conv.weight, conv.bias)  # from pixel -4 on
    kernel = torch.outer(binomial(3), binomial(3)).expand(3, 1, 3, 3)
    expected = F.conv2d(wide, kernel, groups=3)[:, :, 3:11:2, 3:11:2]  # from pixel -3 on
    torch.testing.assert_close(repair(nn.Sequential(conv), "blurpool:3")(x), expected)


# Cut spectra


@pytest.mark.parametrize("name", ["3x3", "patches", "pointwise", "depthwise", "max", "average"])
def test_flc_equals_its_slow_form(name: str) -> None:
    model = nn.Sequential(copy.deepcopy(LAYERS[name]).double(), BIG.double())
    layer = repair(model, "circular", "flc")[0]
    x = torch.randn(2, 4, 12, 20, dtype=torch.float64)
    full = copy.copy(layer.bare[1]).forward(layer.extend(x, full=True))
    torch.testing.assert_close(layer(x), reference.fft_downsample(full, (6, 10)))


def test_a_linear_network_with_flc_moves_with_any_shift() -> None:
    layers = [nn.Conv2d(3, 4, 3, 2, 1), nn.AvgPool2d(2), nn.Conv2d(4, 4, 1, 2)]
    model = repair(nn.Sequential(*layers).double(), "circular", "flc")
    x = photo(32)
    moved = fractional_shift(model(x), 0.3 / 8, -2.7 / 8)
    torch.testing.assert_close(model(fractional_shift(x, 0.3, -2.7)), moved)


# Polyphase components


@pytest.mark.parametrize("name", ["3x3", "patches", "pointwise", "depthwise", "stride 3", "max"])
def test_aps_equals_its_slow_form(name: str) -> None:
    model = nn.Sequential(copy.deepcopy(LAYERS[name]).double(), BIG.double())
    repaired = repair(model, "circular", "aps")
    layer = repaired[0]
    x = torch.randn(3, 4, 12, 12, dtype=torch.float64, requires_grad=True)
    every = layer.at_every_pixel(x)
    expected = select_polyphase(every, every, layer.window.stride[0])
    with own_pass(repaired), torch.no_grad():
        torch.testing.assert_close(layer(x), expected)
    with own_pass(repaired):  # another path: chosen first, then computed where it was chosen
        got = layer(x)
    torch.testing.assert_close(got, expected)
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (got, expected)]
    torch.testing.assert_close(*gradients)


class Hourglass(nn.Module):
    """Puts pixels back where they were."""

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
def test_whole_shifts_change_nothing(name: str) -> None:
    model, x = EXACT[name].double(), photo(count=8)
    steady = repair(model, "circular", "aps", image=x[:1])
    assert max(changes(steady, x, [(1, 0), (0, 1), (2, 3), (-5, 7)])) < 1e-12


def test_branches_out_of_step_are_not_exact() -> None:
    apart, x = repair(Residual().double(), "circular", "aps"), photo(count=8)
    apart.shortcut.sampler = copy.deepcopy(apart.shortcut.sampler)  # a pass of its own
    apart.shortcut.sampler.forward_pass = type(apart.stem.sampler.forward_pass)()
    assert max(changes(apart, x, [(1, 0), (0, 1), (3, 2)])) > 1e-3


def test_a_pass_ends_without_the_root() -> None:
    class Headless(Residual):
        def features(self, x: Tensor) -> Tensor:
            x = self.act(self.stem(x))
            return self.branch(x) + self.shortcut(x)

    model = repair(Headless().double(), "circular", "aps")
    first, second = photo(16), photo(8)  # the second begins at a size the first one passed through
    expected = [copy.deepcopy(model).features(x) for x in (first, second)]
    for x, answer in zip((first, second, first), [*expected, expected[0]], strict=True):
        assert torch.equal(model.features(x), answer)


def test_a_layer_called_by_itself_disturbs_nothing() -> None:
    model, x = repair(Residual().double(), "circular", "aps"), photo(count=8)
    expected = model(x)

    def call_again(layer: nn.Module, inputs: tuple[Tensor], _: Tensor) -> None:
        with own_pass(model):
            layer.forward(inputs[0].roll(1, 2))

    for layer in (model.stem, model.branch, model.shortcut):
        layer.register_forward_hook(call_again)
    assert torch.equal(model(x), expected)


def test_threads_do_not_mix_their_choices() -> None:
    model = repair(Residual().double(), "circular", "aps").eval()
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
def test_a_padding_layer_leaves_its_move(padding: int | tuple[int, ...]) -> None:
    pad, conv = nn.ZeroPad2d(padding), nn.Conv2d(3, 4, 3).double()
    x = photo(12)
    inside = conv(pad(x))[:, :, 2:7, 2:7]  # where the border is out of sight
    model = repair(nn.Sequential(pad, conv), "circular")
    torch.testing.assert_close(model(x)[:, :, 2:7, 2:7], inside)
    assert model(x).shape[2:] == x.shape[2:]


def test_lps_mixes_in_training_and_chooses_in_use() -> None:
    model, x = repair(Residual().double(), "circular", "lps"), photo(count=4)
    assert max(changes(model.eval(), x, [(1, 0), (2, 3), (-5, 7)])) < 1e-12
    model.train()
    assert not torch.equal(model(x), model(x))  # Gumbel noise


def test_tips_is_exact_only_where_its_mixture_is_one_component() -> None:
    model, x = repair(Residual().double(), "circular", "tips").eval(), photo(count=4)
    assert max(changes(model, x, [(1, 0), (2, 3), (-5, 7)])) > 1e-6
    alone = repair(nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1)).double(), "circular", "tips").eval()
    with torch.no_grad():
        alone[0].scorer["second"].fill_(1e9)
        y, moved = alone(x), alone(x.roll(1, 3))
    for a, b in zip(y.flatten(0, 1), moved.flatten(0, 1), strict=True):
        assert min((a.roll(s, 1) - b).abs().max() for s in (0, 1)) < 1e-12


def test_learned_remedies_say_whether_they_are_trained() -> None:
    model = repair(Residual(), "lps")
    assert untrained(model)[:1] == ("stem.scorer.first",)
    assert reports(model)[0].new_parameters == sum(
        p.numel() for name, p in model.named_parameters() if "scorer" in name
    )
    model.load_state_dict(Residual().state_dict())
    assert untrained(model)
    trained = repair(Residual(), "lps")
    trained.load_state_dict(model.state_dict())
    assert untrained(trained) == ()
    assert untrained(repair(Residual(), "aps")) == ()
    assert not any("shortcut" in name for name in untrained(model))  # follows the branch


# Alias-free


def test_af_is_exact_for_polynomials() -> None:
    class Square(nn.ReLU):
        def forward(self, x: Tensor) -> Tensor:
            return x * x

    Square.__module__ = nn.ReLU.__module__  # an activation, as far as surgery knows
    layers = [nn.Conv2d(3, 4, 3, 2, 1), Square(), nn.Conv2d(4, 4, 3, 2, 1), nn.AdaptiveAvgPool2d(1)]
    model = repair(nn.Sequential(*layers).double(), "af")
    for layer in model:
        layer.pointwise = None  # not the fast form of what it says it is
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


# In front of the model

ANYWHERE = [(1, 0), (0.5, 0.5), (0.27, -1.81), (7.3, 5.01)]


def tiny_vit(**options: object) -> nn.Module:
    return timm.create_model(
        "test_vit", img_size=32, patch_size=4, num_classes=10, **options
    ).double()


def test_canonical_makes_a_vit_ignore_every_shift() -> None:
    model, x = tiny_vit().eval(), scene(32, 32)
    assert min(changes(model, x, ANYWHERE)) > 1e-3
    assert max(changes(repair(model, "canonical"), x, ANYWHERE)) < 1e-10
    noisy = x + photo(32)  # whole pixels keep even what lies at the Nyquist frequency
    assert max(changes(repair(model, "canonical"), noisy, [(1, 0), (5, -9)])) < 1e-10


@pytest.mark.parametrize("size", [(32, 32), (15, 20)])
def test_canonical_images_have_first_harmonics_of_phase_zero(size: tuple[int, int]) -> None:
    x = scene(*size)
    spectrum = torch.fft.fft2(Canonical()(x).sum(1))
    for first in (spectrum[:, 1, 0], spectrum[:, 0, 1]):
        torch.testing.assert_close(first.angle(), torch.zeros_like(first.angle()))
    torch.testing.assert_close(Canonical()(Canonical()(x)), Canonical()(x))


def test_canonical_leaves_an_axis_without_first_harmonic() -> None:
    x = scene(16, 16)
    spectrum = torch.fft.fft2(x)
    spectrum[:, :, [1, -1], 0] = 0
    x = torch.fft.ifft2(spectrum).real
    moved = Canonical()(x)
    assert torch.allclose(moved.sum(3), x.sum(3))  # not moved along the rows
    assert not torch.allclose(moved, x)


def test_vote_is_the_mean_probability() -> None:
    model, x = Residual().double(), photo()
    views = [x.roll((y, z), (2, 3)) for y in (-1, 0, 1) for z in (-1, 0, 1)]
    expected = torch.stack([model(view).softmax(1) for view in views]).mean(0)
    torch.testing.assert_close(repair(model, "vote:3")(x).softmax(1), expected)
    halves = [fractional_shift(x, y, z) for y in (-0.5, 0.5) for z in (-0.5, 0.5)]
    expected = torch.stack([model(view).softmax(1) for view in halves]).mean(0)
    torch.testing.assert_close(repair(model, "vote:2")(x).softmax(1), expected)


# What surgery cannot reach


def test_layers_that_resample_by_no_window_are_told() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.PixelUnshuffle(2), nn.LPPool2d(2, 2))
    for remedy, left in (("aps", ["2"]), ("flc", ["1", "2"])):
        report = reports(repair(model, remedy))[0]
        assert [obstacle.where for obstacle in report.unchanged] == left
    widening = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ConvTranspose2d(4, 4, 4, 2, 1))
    for report in reports(repair(widening, "circular", "aps")):
        assert [obstacle.where for obstacle in report.unchanged] == ["1"]


class Functional(nn.Module):
    """Sub-samples, pads and activates in its own code."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.last = nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv(x), 2))
        x = self.last(F.pad(x, (1, 1, 1, 1)))
        return x[:, :, ::2, ::2].mean((2, 3))


def test_the_models_own_code_is_told() -> None:
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


def test_a_layer_that_does_more_than_its_window_says_is_left() -> None:
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


def test_batch_statistics_and_modes_survive_the_survey() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4)).train()
    repaired = repair(model, "aps")
    assert repaired.training
    assert repaired[1].training
    assert int(repaired[1].num_batches_tracked) == 0


# Bad input


@pytest.mark.parametrize(
    ("remedies", "message"),
    [
        (["cirular"], "unknown remedy 'cirular'. Did you mean 'circular'"),
        (["aps", "af"], "aps and af contradict each other, since both decide how layers sub-s"),
        (["canonical", "vote"], "contradict each other, since both decide where the image lies"),
        (["aps", "aps"], "aps is given twice"),
        (["blurpool:9"], "blurpool takes the taps of its filter, 2 to 7, got '9'"),
        (["blurpool:x"], "2 to 7, got 'x'"),
        (["vote:"], "vote takes the side of the grid of shifts, 2 to 15, got ''"),
        (["aps:2"], "aps takes no number"),
        ([], "no remedy given: choose from "),
        (["anchor"], "anchor needs a network that cuts the image into patches, and stem slides"),
    ],
)
def test_bad_input_is_told_in_a_sentence(remedies: list[str], message: str) -> None:
    with pytest.raises(AftModelsError) as caught:
        repair(Residual(), *remedies)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


SURGERY = [name for name, r in REMEDIES.items() if r.group in ("padding", "sampling")]


@pytest.mark.parametrize("remedy", SURGERY)
def test_nothing_to_change_is_an_error(remedy: str) -> None:
    flat = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1))
    with pytest.raises(AftModelsError, match=f"{remedy} finds nothing to change in Sequential"):
        repair(flat, remedy)


def test_repaired_twice_is_an_error() -> None:
    model = repair(Residual(), "circular", "aps")
    with pytest.raises(AftModelsError, match="aps is given twice"):
        repair(model, "aps")
    with pytest.raises(AftModelsError, match="contradict"):
        repair(model, "blurpool")
    part = nn.Sequential(repair(nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1)), "aps"))
    with pytest.raises(AftModelsError, match=r"0\.0 is repaired with aps already"):
        repair(part, "flc")


class Padded(nn.Sequential):
    """Pads in its own code."""

    def forward(self, x: Tensor) -> Tensor:
        return self[0](F.pad(x, (0, 1, 0, 1))) + self[1](x)  # 2 x 2 windows beside 3 x 3


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (  # 8 pixels give 3, and 4 on a torus
            nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.Flatten(), nn.Linear(4 * 9, 2)),
            "circular does not fit Sequential: repaired, it does",
        ),
        (
            Padded(nn.Conv2d(3, 4, 2), nn.Conv2d(3, 4, 3, padding=1)),
            "since no remedy reaches pad in the model's own code",
        ),
    ],
)
def test_a_model_that_no_longer_runs_is_told(model: nn.Module, message: str) -> None:
    with pytest.raises(AftModelsError, match=message):
        repair(model, "circular", image=torch.zeros(1, 3, 8, 8))


def test_images_that_do_not_fit_are_told() -> None:
    anchored = repair(tiny_vit(dynamic_img_size=True), "anchor")
    with pytest.raises(AftModelsError, match="patches of 4 x 4 pixels divide, got 30 x 32"):
        anchored(torch.zeros(1, 3, 30, 32, dtype=torch.float64))
    with pytest.raises(AftModelsError, match="canonical moves images: expected a floating-point"):
        repair(Residual(), "canonical")(torch.zeros(3, 8, 8))
    with pytest.raises(AftModelsError, match="vote does not fit Sequential: repaired, it does not"):
        repair(nn.Sequential(nn.Conv2d(3, 4, 1)), "vote")


def test_a_model_that_could_not_be_run_is_told() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Flatten(), nn.Linear(4 * 16, 2))
    unchanged = reports(repair(model, "aps"))[0].unchanged
    assert "does not take an image of shape (1, 3, 224, 224)" in unchanged[0].why
    with pytest.raises(AftModelsError, match="pass an image that it takes"):
        repair(model, "lps")
    assert reports(repair(model, "lps", image=torch.zeros(1, 3, 8, 8)))[0].new_parameters > 0
