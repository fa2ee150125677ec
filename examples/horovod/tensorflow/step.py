"""One training step: the loss, its gradients averaged over all processes, LARC, momentum."""

from __future__ import annotations

import argparse

import horovod.tensorflow as hvd
import tensorflow as tf
from batches import model_input
from model import CLASSES, decayed_weights


class Trainer:
    """A model, its momentum, and the step that improves it."""

    def __init__(self, args: argparse.Namespace, model: tf.keras.Model) -> None:
        self.args = args
        self.model = model
        self.weights = model.trainable_variables
        self.decayed = decayed_weights(model)
        self.momenta = [tf.Variable(tf.zeros(w.shape), trainable=False) for w in self.weights]
        # Gradients below 6e-8 would be zero in float16, so there the loss is made larger first.
        self.loss_scale = args.loss_scale if args.fp16 else 1.0
        # Nothing in the step needs autograph, which would take seconds to read Horovod's code.
        self.step = tf.function(self._step, autograph=False)

    def _step(
        self, images: tf.Tensor, labels: tf.Tensor, rate: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """One step with this learning rate. Returns the loss without and with the weight decay."""
        with tf.GradientTape() as tape:
            loss, final_loss = self.losses(images, labels)
            scaled_loss = final_loss * self.loss_scale
        # Horovod: the tape's gradients become the mean over all processes. Sent in a few groups,
        # they still travel while others are computed, and the graph is traced in half the time.
        tape = hvd.DistributedGradientTape(tape, num_groups=min(8, len(self.weights)))
        gradients = tape.gradient(scaled_loss, self.weights)
        if self.loss_scale != 1:
            gradients = [gradient / self.loss_scale for gradient in gradients]
        if self.args.use_larc:
            gradients = larc(self.weights, gradients, rate, self.args.leta)
        for weight, momentum, gradient in zip(self.weights, self.momenta, gradients):
            self._improve(weight, momentum, gradient, rate)
        return loss, final_loss

    def losses(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """This process's mean loss over its batch, without and with the weight decay."""
        logits = self.model(model_input(self.args, images), training=True)
        loss = tf.reduce_mean(cross_entropy(labels, logits, self.args.label_smoothing))
        squares = tf.add_n([tf.nn.l2_loss(w) for w in self.decayed])
        return loss, loss + self.args.wdecay * squares

    def _improve(
        self, weight: tf.Variable, momentum: tf.Variable, gradient: tf.Tensor, rate: tf.Tensor
    ) -> None:
        """Stochastic gradient descent with Nesterov's momentum, in one fused operation:
        m <- mom m + g;  w <- w - rate (g + mom m)."""
        tf.raw_ops.ResourceApplyMomentum(
            var=weight.handle,
            accum=momentum.handle,
            lr=rate,
            grad=gradient,
            momentum=self.args.mom,
            use_nesterov=True,
        )

    def broadcast(self) -> None:
        # Horovod: everyone goes on from the state of rank 0.
        hvd.broadcast_variables([*self.model.variables, *self.momenta], root_rank=0)


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor, smoothing: float) -> tf.Tensor:
    """The loss of each image [batch]; smoothing moves that share of a label to all classes."""
    if not smoothing:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    targets = tf.one_hot(labels, CLASSES, 1 - smoothing + smoothing / CLASSES, smoothing / CLASSES)
    return tf.nn.softmax_cross_entropy_with_logits(targets, logits)


def larc(
    weights: list[tf.Variable], gradients: list[tf.Tensor], rate: tf.Tensor, eta: float
) -> list[tf.Tensor]:
    """Gradients made smaller where rate * |g| would move a layer by more than eta of its |w|.

    Layer-wise adaptive rate control: https://arxiv.org/abs/1708.03888 with its rate as the upper
    limit of the layers' own. Where a norm is zero, the layer's own rate is 1.
    """
    weight_norms = tf.stack([tf.norm(w) for w in weights])
    gradient_norms = tf.stack([tf.norm(g) for g in gradients])
    known = tf.logical_and(weight_norms > 0, gradient_norms > 0)
    safe_norms = tf.where(known, gradient_norms, 1.0)
    own_rates = tf.where(known, eta * weight_norms / safe_norms, 1.0)
    factors = tf.unstack(tf.minimum(own_rates / rate, 1.0))
    return [factor * gradient for factor, gradient in zip(factors, gradients)]
