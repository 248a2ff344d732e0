"""Parameter counts and largest tensors, built up again from the published layer shapes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from berth.workload.profiles import load_profile


def conv(inputs, outputs, kernel, *, bias=False, groups=1):
    height, width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    weight = outputs * (inputs // groups) * height * width
    return [weight, outputs] if bias else [weight]


def linear(inputs, outputs, *, bias=True):
    return [inputs * outputs, outputs] if bias else [inputs * outputs]


def norm(channels):
    return [channels, channels]


def conv_norm(inputs, outputs, kernel, groups=1):
    return conv(inputs, outputs, kernel, groups=groups) + norm(outputs)


def alexnet():
    shapes = [(3, 64, 11), (64, 192, 5), (192, 384, 3), (384, 256, 3), (256, 256, 3)]
    tensors = [tensor for shape in shapes for tensor in conv(*shape, bias=True)]
    return tensors + linear(256 * 6 * 6, 4096) + linear(4096, 4096) + linear(4096, 1000)


def vgg(*convs_per_block):
    tensors, inputs = [], 3
    for count, outputs in zip(convs_per_block, (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            tensors += conv(inputs, outputs, 3, bias=True)
            inputs = outputs
    return tensors + linear(512 * 7 * 7, 4096) + linear(4096, 4096) + linear(4096, 1000)


def resnet_bottleneck(*blocks_per_stage):
    tensors, inputs = conv_norm(3, 64, 7), 64
    for stage, blocks in enumerate(blocks_per_stage):
        width = 64 << stage
        for block in range(blocks):
            tensors += conv_norm(inputs, width, 1) + conv_norm(width, width, 3)
            tensors += conv_norm(width, 4 * width, 1)
            if block == 0:
                tensors += conv_norm(inputs, 4 * width, 1)
            inputs = 4 * width
    return tensors + linear(2048, 1000)


def resnet18_cifar():
    tensors, inputs = conv_norm(3, 64, 3), 64
    for stage in range(4):
        width = 64 << stage
        for _ in range(2):
            tensors += conv_norm(inputs, width, 3) + conv_norm(width, width, 3)
            if inputs != width:
                tensors += conv_norm(inputs, width, 1)
            inputs = width
    return tensors + linear(512, 10)


def squeeze_excite(channels, squeezed):
    return conv(channels, squeezed, 1, bias=True) + conv(squeezed, channels, 1, bias=True)


def mobilenet_v3_large():
    rows = [  # kernel, expanded, out, squeezed (0: none)
        (3, 16, 16, 0), (3, 64, 24, 0), (3, 72, 24, 0), (5, 72, 40, 24), (5, 120, 40, 32), (5, 120, 40, 32),
        (3, 240, 80, 0), (3, 200, 80, 0), (3, 184, 80, 0), (3, 184, 80, 0), (3, 480, 112, 120),
        (3, 672, 112, 168), (5, 672, 160, 168), (5, 960, 160, 240), (5, 960, 160, 240),
    ]  # fmt: skip
    tensors, inputs = conv_norm(3, 16, 3), 16
    for kernel, expanded, outputs, squeezed in rows:
        if expanded != inputs:
            tensors += conv_norm(inputs, expanded, 1)
        tensors += conv_norm(expanded, expanded, kernel, groups=expanded)
        if squeezed:
            tensors += squeeze_excite(expanded, squeezed)
        tensors += conv_norm(expanded, outputs, 1)
        inputs = outputs
    return tensors + conv_norm(160, 960, 1) + linear(960, 1280) + linear(1280, 1000)


def inception_v3():
    def branch(inputs, *steps):
        tensors = []
        for outputs, kernel in steps:
            tensors += conv_norm(inputs, outputs, kernel)
            inputs = outputs
        return tensors

    tensors = branch(3, (32, 3), (32, 3), (64, 3), (80, 1), (192, 3))
    for inputs, pooled in ((192, 32), (256, 64), (288, 64)):
        tensors += branch(inputs, (64, 1)) + branch(inputs, (48, 1), (64, 5))
        tensors += branch(inputs, (64, 1), (96, 3), (96, 3)) + branch(inputs, (pooled, 1))
    tensors += branch(288, (384, 3)) + branch(288, (64, 1), (96, 3), (96, 3))
    for wide in (128, 160, 160, 192):
        row, column = (1, 7), (7, 1)
        tensors += branch(768, (192, 1)) * 2 + branch(768, (wide, 1), (wide, row), (192, column))
        tensors += branch(768, (wide, 1), (wide, column), (wide, row), (wide, column), (192, row))
    tensors += branch(768, (192, 1), (320, 3))
    tensors += branch(768, (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3))
    for inputs in (1280, 2048):
        tensors += branch(inputs, (320, 1)) + branch(inputs, (192, 1))
        forked = branch(384, (384, (1, 3))) + branch(384, (384, (3, 1)))
        tensors += branch(inputs, (384, 1)) + forked + branch(inputs, (448, 1), (384, 3)) + forked
    return tensors + linear(2048, 1000)


def transformer_layer(width, inner):
    attention = linear(width, width) * 4 + norm(width)
    return attention + linear(width, inner) + linear(inner, width) + norm(width)


def bert(layers, width):
    embeddings = [30522 * width, 512 * width, 2 * width, *norm(width)]
    return embeddings + transformer_layer(width, 4 * width) * layers + linear(width, width)


def gpt2(layers, width):
    return [50257 * width, 1024 * width, *transformer_layer(width, 4 * width) * layers, *norm(width)]


def moe():
    """GPT-2 whose every second feed-forward is a set of experts: what all devices hold alike."""
    tensors = gpt2(12, 768)
    for _ in range(6):
        for tensor in linear(768, 3072) + linear(3072, 768):
            tensors.remove(tensor)
        tensors += linear(768, 8, bias=False)
    return tensors


def vit(layers, width):
    patches = [*conv(3, width, 16, bias=True), width, 197 * width]
    return patches + transformer_layer(width, 4 * width) * layers + norm(width) + linear(width, 1000)


def transformer_xl():
    width, inner, vocabulary = 410, 2100, 267735
    layer = [3 * width * width, width * width, width * width, *norm(width)]
    layer += linear(width, inner) + linear(inner, width) + norm(width)
    head = [vocabulary, 3 * width, 3]  # bias of the tied output, and the three clusters of the softmax
    return [vocabulary * width, *layer * 16, *head, 410, 410]


def transformer_base():
    attention = linear(512, 512, bias=False) * 4 + norm(512)
    feed_forward = linear(512, 2048) + linear(2048, 512) + norm(512)
    return [37000 * 512, *(attention + feed_forward) * 6, *(attention * 2 + feed_forward) * 6]


def recurrent(gates, inputs, hidden):
    return [gates * hidden * inputs, gates * hidden * hidden, gates * hidden, gates * hidden]


def lstm_language_model():
    layers = recurrent(4, 200, 200) * 2
    return [33278 * 200, *layers, *linear(200, 33278)]


def deep_speech2():
    tensors = conv(1, 32, (41, 11), bias=True) + norm(32) + conv(32, 32, (21, 11), bias=True) + norm(32)
    tensors += recurrent(3, 1312, 800) * 2
    for _ in range(4):
        tensors += norm(800) + recurrent(3, 800, 800) * 2
    return tensors + norm(800) + linear(800, 29, bias=False)


def cyclegan():
    generator = conv(3, 64, 7, bias=True) + conv(64, 128, 3, bias=True) + conv(128, 256, 3, bias=True)
    generator += conv(256, 256, 3, bias=True) * 18
    generator += conv(256, 128, 3, bias=True) + conv(128, 64, 3, bias=True) + conv(64, 3, 7, bias=True)
    widths = (3, 64, 128, 256, 512, 1)
    judge = [t for a, b in pairwise(widths) for t in conv(a, b, 4, bias=True)]
    return (generator + judge) * 2


def mlp(*widths):
    return [t for a, b in pairwise(widths) for t in linear(a, b)]


def ncf():
    users, items = 138_493, 26_744
    tables = [users * 64, items * 64, users * 128, items * 128]
    return tables + mlp(256, 256, 128, 64) + linear(128, 1)


def dlrm_dense():
    pairs = 27 * 26 // 2
    return mlp(13, 512, 256, 128) + mlp(128 + pairs, 1024, 1024, 512, 256, 1)


def graphsage():
    return [602 * 256, 602 * 256, 256, 256 * 41, 256 * 41, 41]


ARCHITECTURES = {
    "alexnet": (alexnet(), 61_100_840),
    "vgg11": (vgg(1, 1, 2, 2, 2), 132_863_336),
    "vgg16": (vgg(2, 2, 3, 3, 3), 138_357_544),
    "vgg19": (vgg(2, 2, 4, 4, 4), 143_667_240),
    "resnet18": (resnet18_cifar(), 11_173_962),
    "resnet50": (resnet_bottleneck(3, 4, 6, 3), 25_557_032),
    "resnet101": (resnet_bottleneck(3, 4, 23, 3), 44_549_160),
    "resnet152": (resnet_bottleneck(3, 8, 36, 3), 60_192_808),
    "inception3": (inception_v3(), 23_834_568),
    "mobilenetv3": (mobilenet_v3_large(), 5_483_032),
    "vit-b16": (vit(12, 768), 86_567_656),
    "vit-l16": (vit(24, 1024), 304_326_632),
    "cyclegan": (cyclegan(), 28_285_832),
    "bert-base": (bert(12, 768), 109_482_240),
    "bert-large": (bert(24, 1024), 335_141_888),
    "gpt2": (gpt2(12, 768), 124_439_808),
    "gpt2-medium": (gpt2(24, 1024), 354_823_168),
    "transformer": (transformer_base(), None),
    "transformer-xl": (transformer_xl(), 151_107_538),
    "lstm": (lstm_language_model(), None),
    "moe": (moe(), None),
    "deepspeech2": (deep_speech2(), None),
    "ncf": (ncf(), 31_832_577),
    "dlrm": (dlrm_dense(), None),
    "autoencoder": (mlp(20_108, 200, 20_108), None),
    "graphsage": (graphsage(), None),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_gradient_bytes_and_largest_tensor_follow_from_the_layer_shapes(name):
    tensors, published = ARCHITECTURES[name]
    profile = load_profile(name)
    assert published in (None, sum(tensors))
    assert profile.parameter_bytes.value == 4 * sum(tensors)
    assert profile.largest_tensor_bytes.value == 4 * max(tensors)
