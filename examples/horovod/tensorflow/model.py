"""ResNet-18 to 152, with the layers of https://arxiv.org/abs/1512.03385.

The stride of a block is in its 3x3 convolution. The last batch norm of a block starts at zero, as
in https://arxiv.org/abs/1706.02677.
"""

from __future__ import annotations

import argparse

import tensorflow as tf

layers = tf.keras.layers

CLASSES = 1000

# Blocks per stage, and whether a block is three convolutions (a bottleneck) or two.
BLOCKS = {
    "resnet18": ((2, 2, 2, 2), False),
    "resnet34": ((3, 4, 6, 3), False),
    "resnet50": ((3, 4, 6, 3), True),
    "resnet101": ((3, 4, 23, 3), True),
    "resnet152": ((3, 8, 36, 3), True),
}


def build_resnet(args: argparse.Namespace) -> tf.keras.Model:
    """Return a model from images to float32 logits [batch, 1000].

    The images have channels first or last, as Keras's image data format says.
    """
    blocks_per_stage, bottleneck = BLOCKS[args.model]
    size = args.image_size
    images = tf.keras.Input((3, size, size) if channels_first() else (size, size, 3))

    x = layers.ZeroPadding2D(3)(images)
    x = convolution(args, x, 64, 7, stride=2, padding="valid")
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    for stage, blocks in enumerate(blocks_per_stage):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            x = residual_block(args, x, 64 * 2**stage, stride, bottleneck)
    x = layers.GlobalAveragePooling2D()(x)
    normal = tf.keras.initializers.RandomNormal(stddev=0.01)
    logits = layers.Dense(CLASSES, kernel_initializer=normal)(x)
    # Float32 logits: with --fp16, too, the loss is computed in float32.
    return tf.keras.Model(images, layers.Activation("linear", dtype="float32")(logits))


def residual_block(
    args: argparse.Namespace, x: tf.Tensor, filters: int, stride: int, bottleneck: bool
) -> tf.Tensor:
    shortcut = x
    depth = 4 * filters if bottleneck else filters
    if x.shape[channel_axis()] != depth or stride != 1:
        shortcut = convolution(args, x, depth, 1, stride, relu=False)
    if bottleneck:
        x = convolution(args, x, filters, 1)
        x = convolution(args, x, filters, 3, stride)
        x = convolution(args, x, depth, 1, relu=False, last=True)
    else:
        x = convolution(args, x, filters, 3, stride)
        x = convolution(args, x, depth, 3, relu=False, last=True)
    return layers.ReLU()(layers.add([x, shortcut]))


def convolution(
    args: argparse.Namespace,
    x: tf.Tensor,
    filters: int,
    kernel: int,
    stride: int = 1,
    padding: str = "same",
    relu: bool = True,
    last: bool = False,
) -> tf.Tensor:
    """Add a convolution without bias, a batch norm and, if `relu`, a ReLU.

    `last` marks the last convolution of a block.
    """
    scaled = tf.keras.initializers.VarianceScaling()
    x = layers.Conv2D(
        filters,
        kernel,
        stride,
        padding,
        use_bias=False,
        kernel_initializer=scaled if args.adv_conv_init else "glorot_uniform",
    )(x)
    x = layers.BatchNormalization(
        channel_axis(),
        momentum=0.9,
        epsilon=1e-4,
        gamma_initializer="zeros" if last and args.adv_bn_init else "ones",
    )(x)
    return layers.ReLU()(x) if relu else x


def decayed_weights(model: tf.keras.Model) -> list[tf.Variable]:
    """Return the weights that weight decay applies to: all but the batch norms'."""
    return [w for w in model.trainable_variables if "batch_normalization" not in w.name]


def channels_first() -> bool:
    return tf.keras.backend.image_data_format() == "channels_first"


def channel_axis() -> int:
    return 1 if channels_first() else -1
