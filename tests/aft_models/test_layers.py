"""Layers: each fast form equals its plain form, and each layer has the stated property."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial

import fft_reference as reference
import pytest
import torch
import torch.nn.functional as F
from shifted_models import disturbed
from torch import Tensor, nn

from aft_models import AftModelsError
from aft_models.layers import (
    AliasFreeActivation,
    AliasFreeClassAttention,
    AliasFreeDownsample,
    AliasFreeLayerNorm,
    ApsDownsample,
    ConvPatchEmbed,
    LinearAttention,
    SimaAttention,
    fractional_shift,
    select_polyphase,
    stem,
)
from aft_models.layers.attention import ATTENTIONS
from aft_models.layers.padding import CircularConv2d, circular_pad

# Every n mod 4 on both axes, square or not.
SIZES = [(4, 6), (5, 7), (6, 9), (7, 4), (8, 8), (10, 2)]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def assert_same_gradients(
    fast: Tensor, slow: Tensor, leaves: list[Tensor], *, relative: float = 1e-10
) -> None:
    """Compare values and all gradients, relative to the largest entry of each."""
    weight = torch.randn_like(slow)
    pairs = [(fast.detach(), slow.detach())]
    pairs += zip(
        torch.autograd.grad(fast, leaves, weight),
        torch.autograd.grad(slow, leaves, weight, retain_graph=True),
        strict=True,
    )
    for got, expected in pairs:
        assert got.shape == expected.shape
        assert (got - expected).abs().max() <= relative * expected.abs().max()


def assert_commutes(layer: Callable[[Tensor], Tensor], x: Tensor, *offset: float) -> None:
    """Compare the layer of the shifted map with the shifted layer of the map."""
    got, expected = layer(fractional_shift(x, *offset)), fractional_shift(layer(x), *offset)
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)


def plain_function(layer: AliasFreeActivation, x: Tensor) -> Tensor:
    """Apply the layer's function to each element, ``(B, C, H, W)``, power by power."""
    if layer.coefficients is None:
        return F.gelu(x)
    rows = layer.coefficients[:, :, None, None].unbind(1)
    return torch.stack([c * x**i for i, c in enumerate(rows)]).sum(0)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("function", ["gelu", "poly"])
@pytest.mark.parametrize("up", [2, 3, 4])
@pytest.mark.parametrize("size", SIZES)
def test_activation_equals_fft_form(
    size: tuple[int, int], up: int, function: str, layout: str
) -> None:
    for down in (1, 2):
        if size[0] % down or size[1] % down:
            continue
        layer = AliasFreeActivation(
            function, channels=3, up=up, down=down, degree=3, layout=layout
        ).double()
        x = double(2, 3, *size).requires_grad_()
        leaves = [x]
        if layer.coefficients is not None:
            nn.init.normal_(layer.coefficients)
            leaves.append(layer.coefficients)
        slow = reference.fft_activation(x, partial(plain_function, layer), up=up, down=down)
        last = layout == "NHWC"
        fast = layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) if last else layer(x)
        assert_same_gradients(fast, slow, leaves)


def test_activation_independent_of_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = AliasFreeActivation().double()
    x = double(5, 2, 6, 6).requires_grad_()
    whole = layer(x)
    (grad,) = torch.autograd.grad(whole.square().sum(), x)
    two_images = 2 * x[0].numel() // torch.get_num_threads()
    monkeypatch.setattr("aft_models.layers.activation._CPU_CHUNK", two_images)
    parts = layer(x)
    (grad_parts,) = torch.autograd.grad(parts.square().sum(), x)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-14)
    torch.testing.assert_close(grad_parts, grad, rtol=0, atol=1e-14)


@pytest.mark.parametrize("size", [6, 20], ids=["whole", "phases"])
def test_activation_is_one_graph_for_the_compiler(size: int) -> None:
    layer = AliasFreeActivation("poly", channels=2, degree=3, layout="NHWC").double()
    traced = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = double(2, size, size, 2).requires_grad_()
    assert_same_gradients(traced(x), layer(x), [x, layer.coefficients])
    torch._dynamo.reset()


def test_activation_keeps_channels_last() -> None:
    x = double(2, 3, 6, 8)
    layer = AliasFreeActivation("poly", channels=3, degree=2).double()
    y = layer(x.to(memory_format=torch.channels_last))
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, layer(x), rtol=0, atol=1e-13)


@pytest.mark.parametrize("up", [2, 3, 4])
def test_activation_commutes_with_steps_of_its_fine_grid(up: int) -> None:
    layer = AliasFreeActivation(up=up).double()
    x = reference.fft_downsample(double(1, 2, 8, 7), (8, 7))
    for steps in ((1, 0), (2, 1), (1, up + 1)):
        assert_commutes(layer, x, steps[0] / up, steps[1] / up)


@pytest.mark.parametrize(("degree", "up"), [(2, 2), (3, 2), (5, 3), (7, 4)])
def test_polynomials_are_exact_for_every_shift(degree: int, up: int) -> None:
    layer = AliasFreeActivation("poly", channels=2, up=up, degree=degree).double()
    assert layer.coefficients is not None
    nn.init.normal_(layer.coefficients)
    x = reference.fft_downsample(double(1, 2, 8, 9), (8, 9))
    assert_commutes(layer, x, 0.27, 1.41)


def test_polynomial_degree_too_high_for_up_factor_warns() -> None:
    with pytest.warns(UserWarning, match="only from up = 3"):
        AliasFreeActivation("poly", channels=2, degree=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AliasFreeActivation("poly", channels=2, degree=3)


def test_activation_accepts_any_elementwise_function() -> None:
    x = double(1, 2, 6, 6).requires_grad_()
    layer = AliasFreeActivation(torch.tanh, layout="NHWC")
    slow = reference.fft_activation(x, torch.tanh)
    fast = layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    assert_same_gradients(fast, slow, [x])


# Channels last, as on a CPU, and channels first.
@pytest.mark.parametrize(("rows_axis", "up"), [(1, 2), (2, 2), (1, 3), (2, 3)])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("activation", ["af_gelu", "af_poly"])
def test_fused_stem_equals_its_modules(
    activation: str, training: bool, rows_axis: int, up: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stem, "_rows_axis", lambda image: rows_axis)
    monkeypatch.setattr("aft_models.layers.activation._CPU_CHUNK", 1)  # an image per thread
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # therefore two chunks
    options = {"padding": "circular", "downsample": "af", "last_activation": True}
    fused = ConvPatchEmbed(16, 8, activation=activation, up=up, **options).double()
    disturbed(fused).train(training)
    plain = copy.deepcopy(fused)
    x = double(3, 3, 16, 24).requires_grad_()
    fast, grid = fused(x)
    assert grid == (2, 3)
    slow = plain.proj(x).flatten(2).transpose(1, 2)
    weight = torch.randn_like(fast)
    grads = [
        torch.autograd.grad(y, [x, *m.parameters()], weight)
        for y, m in ((fast, fused), (slow, plain))
    ]
    for got, expected in zip((fast, *grads[0]), (slow, *grads[1]), strict=True):
        assert (got - expected).abs().max() <= 1e-10 * expected.abs().max()
    for (name, a), b in zip(fused.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12, msg=name)


def test_stem_runs_modules_of_synchronized_norm() -> None:
    embed = ConvPatchEmbed(8, 4, padding="circular", downsample="af", activation="af_gelu")
    x = torch.randn(2, 3, 8, 8)
    embed.eval()
    expected, _ = embed(x)
    synchronized = nn.SyncBatchNorm.convert_sync_batchnorm(embed).eval()
    got, _ = synchronized(x)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["proj.0", "proj.0.0", "proj.0.1", "proj.1"])
def test_stem_calls_modules_with_hooks(name: str) -> None:
    embed = ConvPatchEmbed(8, 4, padding="circular", downsample="af", activation="af_gelu").eval()
    x = torch.randn(2, 3, 8, 8)
    expected, _ = embed(x)
    seen = []
    embed.get_submodule(name).register_forward_hook(lambda *call: seen.append(call))
    torch.testing.assert_close(embed(x)[0], expected, rtol=1e-5, atol=1e-6)
    assert len(seen) == 1


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 2, 2, 2), (1, 1, 1, 3)])
def test_circular_pad_equals_torch(shape: tuple[int, int, int, int]) -> None:
    x = double(*shape).requires_grad_()
    slow = F.pad(x, (1, 1, 1, 1), mode="circular")
    assert_same_gradients(circular_pad(x), slow, [x])
    last = x.to(memory_format=torch.channels_last)
    assert_same_gradients(circular_pad(last), slow, [x])


@pytest.mark.parametrize("groups", [1, 4])
def test_circular_convolution_equals_torch(groups: int) -> None:
    plain = nn.Conv2d(4, 8, 3, padding=1, padding_mode="circular", groups=groups).double()
    fast = CircularConv2d(4, 8, 3, padding=1, padding_mode="circular", groups=groups).double()
    fast.load_state_dict(plain.state_dict())
    x = double(2, 4, 5, 6)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        torch.testing.assert_close(fast(x.to(memory_format=memory_format)), plain(x))


@pytest.mark.parametrize("mean", ["token", "channel"])
def test_norm_equals_its_equation(mean: str) -> None:
    norm = AliasFreeLayerNorm(5, mean=mean).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = (3 + double(2, 7, 5)).requires_grad_()
    centered = x - x.mean(2 if mean == "token" else 1, keepdim=True)
    deviation = (centered.square().mean((1, 2), keepdim=True) + norm.eps).sqrt()
    slow = centered / deviation * norm.weight + norm.bias
    assert_same_gradients(norm(x), slow, [x, norm.weight, norm.bias])


@pytest.mark.parametrize("mean", ["token", "channel"])
def test_norm_commutes_with_fractional_shifts(mean: str) -> None:
    norm = AliasFreeLayerNorm(5, mean=mean).double()
    grid = reference.fft_downsample(double(1, 5, 6, 8), (6, 8))
    assert_commutes(lambda x: norm(x.flatten(2).mT).mT.reshape(x.shape), grid, 0.3, 1.7)


def plain_aps(x: Tensor, stride: int) -> Tensor:
    """Compute APS one image and one component at a time."""
    chosen = []
    for image in x:
        parts = [image[:, i::stride, j::stride] for i in range(stride) for j in range(stride)]
        norms = [float(part.norm()) for part in parts]
        chosen.append(parts[norms.index(max(norms))])
    return torch.stack(chosen)


@pytest.mark.parametrize("stride", [2, 3])
def test_aps_equals_the_loop(stride: int) -> None:
    x = double(6, 3, 6, 12)
    assert torch.equal(ApsDownsample(stride)(x), plain_aps(x, stride))
    activated = ApsDownsample(stride, nn.GELU())(x)
    torch.testing.assert_close(activated, plain_aps(F.gelu(x), stride))


def test_aps_breaks_ties_by_the_lowest_index_and_pads_odd_sizes() -> None:
    assert torch.equal(select_polyphase(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 4, 4)),
                       torch.ones(1, 1, 2, 2))  # fmt: skip
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    tied = select_polyphase(x, torch.ones(1, 1, 4, 4))
    assert torch.equal(tied, x[:, :, ::2, ::2])
    odd = double(2, 3, 5, 7)
    padded = F.pad(odd, (0, 1, 0, 1), mode="circular")
    assert torch.equal(ApsDownsample(2)(odd), plain_aps(padded, 2))


@pytest.mark.parametrize("name", sorted(ATTENTIONS))
def test_attention_equivariant_to_shifts_of_tokens(name: str) -> None:
    """Q, K, V shift with the input and K^T V does not change, so the output shifts (Prop. 1-2)."""
    attention = ATTENTIONS[name](8, num_heads=2, qkv_bias=True).double()
    grid = reference.fft_downsample(double(2, 8, 6, 5), (6, 5))
    # Only SimA's l1 norm changes under fractional shifts: integer shifts of tokens are exact.
    offset = (1, 2) if name == "sima" else (0.3, 2.6)
    moved = fractional_shift(grid, *offset)

    def tokens(x: Tensor) -> Tensor:
        return x.flatten(2).mT

    def move(x: Tensor) -> Tensor:
        return tokens(fractional_shift(x.mT.reshape(2, -1, 6, 5), *offset))

    qkv, qkv_moved = attention.qkv(tokens(grid)), attention.qkv(tokens(moved))
    torch.testing.assert_close(qkv_moved, move(qkv), rtol=0, atol=1e-12)
    _, k, v = qkv.chunk(3, dim=2)
    _, k_moved, v_moved = qkv_moved.chunk(3, dim=2)
    torch.testing.assert_close(k_moved.mT @ v_moved, k.mT @ v, rtol=0, atol=1e-11)
    torch.testing.assert_close(
        attention(tokens(moved)), move(attention(tokens(grid))), rtol=0, atol=1e-12
    )


def test_linear_and_sima_equal_their_equations() -> None:
    x = double(2, 7, 6)
    for kind in (LinearAttention, SimaAttention):
        attention = kind(6, 1).double()
        q, k, v = attention.qkv(x).chunk(3, dim=2)
        if kind is SimaAttention:
            q, k = (t / t.abs().sum(1, keepdim=True) for t in (q, k))
            mixed = q @ (k.mT @ v)
        else:
            mixed = q @ (k.mT @ v) / 7
        torch.testing.assert_close(attention(x), attention.proj(mixed))


@pytest.mark.parametrize("residual_norm", [True, False])
def test_class_attention_token_invariant_and_patches_equivariant(residual_norm: bool) -> None:
    """Propositions 3 and 4, for the authors' code and for the paper's text."""
    block = AliasFreeClassAttention(8, 2, residual_norm=residual_norm).double()
    grid = reference.fft_downsample(double(2, 8, 6, 5), (6, 5))
    token = double(2, 1, 8)

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        y = block(torch.cat([token, x.flatten(2).mT], 1))
        return y[:, 0], y[:, 1:].mT.reshape(x.shape)

    token_0, patches_0 = run(grid)
    token_1, patches_1 = run(fractional_shift(grid, 0.4, 1.3))
    torch.testing.assert_close(token_1, token_0, rtol=0, atol=1e-12)
    torch.testing.assert_close(patches_1, fractional_shift(patches_0, 0.4, 1.3), rtol=0, atol=1e-12)


def test_class_attention_without_residual_norm_has_structure_of_blocks() -> None:
    block = AliasFreeClassAttention(8, 2, residual_norm=False).double()
    x = double(2, 7, 8)
    y = x + block.gamma1 * block.attn(block.norm1(x))
    token = y[:, :1] + block.gamma2 * block.mlp(block.norm2(y)[:, :1])
    torch.testing.assert_close(block(x), torch.cat([token, y[:, 1:]], 1))


def test_activation_backward_saves_only_the_input() -> None:
    layer = AliasFreeActivation(layout="NHWC")
    x = torch.randn(2, 6, 6, 4, requires_grad=True)
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        layer(x)
    assert sum(t.numel() for t in saved) == x.numel()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (lambda: AliasFreeActivation(up=1), "at least 2"),
        (lambda: AliasFreeActivation(layout="CHWN"), "NHWC"),
        (lambda: AliasFreeActivation("poly"), "channels"),
        (lambda: AliasFreeActivation("relu"), "unknown activation 'relu'"),
        (lambda: AliasFreeActivation()(torch.zeros(2, 3, 4)), "4-D"),
        (lambda: AliasFreeActivation(down=2)(torch.zeros(1, 1, 5, 4)), "must divide"),
        (lambda: AliasFreeLayerNorm(4, mean="batch"), "'token' or 'channel'"),
        (lambda: AliasFreeLayerNorm(4)(torch.zeros(2, 4)), r"\(B, N, C\)"),
        (lambda: ApsDownsample(0), "positive"),
        (lambda: ConvPatchEmbed(8, 4)(torch.zeros(1, 3, 10, 8)), "divide the image, 10 x 8"),
        (lambda: AliasFreeDownsample(2)(torch.zeros(1, 1, 5, 4)), "must divide"),
    ],
)
def test_layers_invalid_input_raises(request_: Callable[[], object], message: str) -> None:
    with pytest.raises(AftModelsError, match=message):
        request_()
