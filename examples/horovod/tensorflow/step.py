"""One training step: loss, loss scale, gradients averaged over all processes, LARC, momentum."""

from __future__ import annotations

import argparse
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from batches import model_input
from model import CLASSES, decayed_weights

# The loss scale without --loss_scale starts as in the original program and adapts to float16.
FIRST_SCALE = 1024.0
LARGEST_SCALE = 2.0**24
GROWS_AFTER = 2000  # good steps in a row that double the scale


class LossScale:
    """The factor by which the loss is multiplied, and the counts of good and skipped steps.

    In float16, gradients below 6e-8 become zero and gradients above 65504 become infinite. The
    scale keeps them in this range. A step with a gradient that is infinite or NaN is skipped, and
    halves the scale. 2,000 good steps in a row double it. With `--loss_scale`, or in float32, the
    scale is fixed, and such steps are skipped as well.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.is_fixed = not args.fp16 or args.loss_scale is not None
        first = (args.loss_scale or FIRST_SCALE) if args.fp16 else 1.0
        self.value = tf.Variable(first, trainable=False)
        self.good_steps = tf.Variable(0, trainable=False, dtype=tf.int64)  # in a row, at this scale
        self.skipped = tf.Variable(0, trainable=False, dtype=tf.int64)
        self.skipped_in_a_row = tf.Variable(0, trainable=False, dtype=tf.int64)

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """The variables that a resumed run restores. A fixed scale comes from the command line."""
        counts = {"skipped": self.skipped, "skipped_in_a_row": self.skipped_in_a_row}
        changing = {"loss_scale": self.value, "good_steps": self.good_steps}
        return counts if self.is_fixed else {**counts, **changing}

    def follow(self, is_good: tf.Tensor) -> None:
        """Count a step, and set the scale of the next one."""
        skipped = tf.cast(tf.logical_not(is_good), tf.int64)
        self.skipped.assign_add(skipped)
        self.skipped_in_a_row.assign((self.skipped_in_a_row + 1) * skipped)
        if self.is_fixed:
            return
        good_steps = (self.good_steps + 1) * (1 - skipped)
        grows = good_steps >= GROWS_AFTER
        self.good_steps.assign(tf.where(grows, tf.zeros_like(good_steps), good_steps))
        grown = tf.where(grows, tf.minimum(self.value * 2, LARGEST_SCALE), self.value)
        self.value.assign(tf.where(is_good, grown, tf.maximum(self.value / 2, 1.0)))

    def __str__(self) -> str:
        return f"Loss scale: {float(self.value):.10g}, skipped steps: {int(self.skipped)}"


class Trainer:
    """A model, its momentum, and the training step."""

    def __init__(self, args: argparse.Namespace, model: tf.keras.Model) -> None:
        self.args = args
        self.model = model
        self.weights = model.trainable_variables
        self.decayed = decayed_weights(model)
        self.momenta = [tf.Variable(tf.zeros(w.shape), trainable=False) for w in self.weights]
        self.scale = LossScale(args)
        self.update = self._update
        if args.fused_update:
            self.update = tf.function(self._compiled_update, autograph=False, jit_compile=True)
        # The step does not need autograph, which would take seconds to convert Horovod's code.
        self.step = tf.function(self._step, autograph=False)

    def _step(
        self, images: tf.Tensor, labels: tf.Tensor, rate: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Train for one step at this rate. Return the loss without and with the weight decay."""
        averages_before = [tf.identity(each) for each in self.model.non_trainable_variables]
        with tf.GradientTape() as tape:
            loss, final_loss = self.losses(images, labels)
            scaled_loss = final_loss * self.scale.value
        # Horovod: the tape's gradients become the mean over all processes. They are sent in a few
        # groups: some are sent while others are computed, and tracing the graph takes half as long.
        tape = hvd.DistributedGradientTape(tape, groups=min(8, len(self.weights)), **self.sending())
        self.update(tape.gradient(scaled_loss, self.weights), averages_before, rate)
        return loss, final_loss

    def sending(self) -> dict[str, Any]:
        """Return the arguments of Horovod's tape that --fp16_allreduce adds."""
        if not self.args.fp16_allreduce:
            return {}
        # By default the mean is divided by the number of processes after the sum. A sum of float16
        # can overflow, so each process divides its gradients before it, and the loss scale with
        # them: docs/training.md has the error of small gradients. Divided by the square root of the
        # size before the sum, gradients of 50,000 would overflow on two processes.
        factor = float(hvd.size())  # Horovod: the number of processes
        return {"compression": hvd.Compression.fp16, "gradient_predivide_factor": factor}

    def _update(
        self, gradients: list[tf.Tensor], averages_before: list[tf.Tensor], rate: tf.Tensor
    ) -> None:
        """Update weights, momenta and loss scale. After an overflow, change only the loss scale.

        `gradients` are those of the scaled loss. `averages_before` are the batch norms' moving
        averages before this step: an overflow is in them, too, where it would stay forever.
        """
        averages = self.model.non_trainable_variables
        gradients, is_good = self._unscaled(gradients)

        def skip() -> None:
            for average, before in zip(averages, averages_before):
                average.assign(before)

        tf.cond(is_good, lambda: self._improve_all(gradients, rate), skip)
        self.scale.follow(is_good)

    def _compiled_update(
        self, gradients: list[tf.Tensor], averages_before: list[tf.Tensor], rate: tf.Tensor
    ) -> None:
        """Do the same as `_update`, in a form for XLA: both results are computed, one is kept.

        So the host need not wait for the device to learn whether the step is good, and XLA merges
        the operations of the many small weights.
        """
        changing = [*self.weights, *self.momenta]
        before = [*map(tf.identity, changing), *averages_before]
        gradients, is_good = self._unscaled(gradients)
        self._improve_all(gradients, rate)
        for variable, old in zip([*changing, *self.model.non_trainable_variables], before):
            variable.assign(tf.where(is_good, variable, old))
        self.scale.follow(is_good)

    def _unscaled(self, gradients: list[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return the gradients of the loss itself, and whether their norm is a finite number."""
        gradients = [g / self.scale.value for g in gradients]
        # Horovod: an overflow on one process is in the mean on all of them, so all decide alike.
        return gradients, tf.math.is_finite(tf.linalg.global_norm(gradients))

    def _improve_all(self, gradients: list[tf.Tensor], rate: tf.Tensor) -> None:
        for step in zip(self.weights, self.momenta, self._limited(gradients, rate)):
            self._improve(*step, rate)

    def _limited(self, gradients: list[tf.Tensor], rate: tf.Tensor) -> list[tf.Tensor]:
        """Apply LARC to the gradients if --use_larc is given."""
        if not self.args.use_larc:
            return gradients
        return larc(self.weights, gradients, rate, self.args.leta)

    def losses(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return this process's mean loss over its batch, without and with the weight decay."""
        logits = self.model(model_input(self.args, images), training=True)
        loss = tf.reduce_mean(cross_entropy(labels, logits, self.args.label_smoothing))
        squares = tf.add_n([tf.nn.l2_loss(w) for w in self.decayed])
        return loss, loss + self.args.wdecay * squares

    def _improve(
        self, weight: tf.Variable, momentum: tf.Variable, gradient: tf.Tensor, rate: tf.Tensor
    ) -> None:
        """Update a weight by gradient descent with Nesterov's momentum, in one fused operation.

        m <- mom m + g;  w <- w - rate (g + mom m)
        """
        tf.raw_ops.ResourceApplyMomentum(
            var=weight.handle,
            accum=momentum.handle,
            lr=rate,
            grad=gradient,
            momentum=self.args.mom,
            use_nesterov=True,
        )

    def broadcast(self) -> None:
        # Horovod: all processes start from the state of rank 0.
        state = [*self.model.variables, *self.momenta, *self.scale.variables.values()]
        hvd.broadcast_variables(state, root_rank=0)


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor, smoothing: float) -> tf.Tensor:
    """Return each image's loss [batch]. `smoothing`: share of a label given to all classes."""
    if not smoothing:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    targets = tf.one_hot(labels, CLASSES, 1 - smoothing + smoothing / CLASSES, smoothing / CLASSES)
    return tf.nn.softmax_cross_entropy_with_logits(targets, logits)


def larc(
    weights: list[tf.Variable], gradients: list[tf.Tensor], rate: tf.Tensor, eta: float
) -> list[tf.Tensor]:
    """Scale down the gradient of each layer that rate * |g| would move by more than eta * |w|.

    This is layer-wise adaptive rate control: https://arxiv.org/abs/1708.03888, with `rate` as the
    upper limit of each layer's own rate. If a norm is zero, the layer's own rate is 1.
    """
    weight_norms = tf.stack([tf.norm(w) for w in weights])
    gradient_norms = tf.stack([tf.norm(g) for g in gradients])
    known = tf.logical_and(weight_norms > 0, gradient_norms > 0)
    safe_norms = tf.where(known, gradient_norms, 1.0)
    own_rates = tf.where(known, eta * weight_norms / safe_norms, 1.0)
    factors = tf.unstack(tf.minimum(own_rates / rate, 1.0))
    return [factor * gradient for factor, gradient in zip(factors, gradients)]
