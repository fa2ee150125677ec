"""Writes the tiny SavedModel of test_serve.py to DIR/VERSION. Run in the training environment."""

import sys

import tensorflow as tf


class Tiny(tf.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = tf.Variable(float(factor))

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")])
    def scaled(self, x):
        return {"y": self.factor * x}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 2], tf.float32, "x"),
            tf.TensorSpec([None], tf.int32, "k"),
        ]
    )
    def several(self, x, k):
        return {"sum": tf.reduce_sum(x, 1), "same": k}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "t")])
    def text(self, t):
        return {"same": t, "same_bytes": t}

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")])
    def total(self, x):
        return {"total": tf.reduce_sum(x)}


for version in map(int, sys.argv[2:]):
    tiny = Tiny(version)
    signatures = {"serving_default": tiny.scaled} | {
        name: getattr(tiny, name) for name in ("several", "text", "total")
    }
    tf.saved_model.save(tiny, f"{sys.argv[1]}/{version}", signatures)
