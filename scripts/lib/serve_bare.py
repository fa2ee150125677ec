"""Save a small CIFAR-10 model at FOLDER/1, and time bare calls of it: serve_bare.py FOLDER BATCH...

Prints the seconds of each call, by batch size, as JSON.
"""

import json
import sys
import time

import numpy as np
import tensorflow as tf

SECONDS = 5.0
layers = tf.keras.layers
model = tf.keras.Sequential(
    [
        layers.Input((32, 32, 3)),
        *(layers.Conv2D(32 * 2**n, 3, strides=2, activation="relu") for n in range(3)),
        layers.Flatten(),
        layers.Dense(10, activation="softmax"),
    ]
)
model.save(sys.argv[1] + "/1", save_format="tf")
call = tf.saved_model.load(sys.argv[1] + "/1").signatures["serving_default"]
[name] = call.structured_input_signature[1]
times = {}
for batch in map(int, sys.argv[2:]):
    images = np.random.default_rng(0).integers(0, 256, (batch, 32, 32, 3)).astype("float32")
    for _ in range(20):
        call(**{name: tf.constant(images)})
    times[batch] = []
    end = time.perf_counter() + SECONDS
    while (began := time.perf_counter()) < end:
        [output] = call(**{name: tf.constant(images)}).values()
        output.numpy()
        times[batch].append(time.perf_counter() - began)
print(json.dumps(times))
