"""Run under mpirun in a training environment: checks that RANKS ranks meet and stay alike in a
step.

    ranks.py RANKS

Both faults are silent otherwise. If Horovod was built against another MPI, each rank runs by
itself. If Horovod does not support the Keras that is installed (3), gradients are not averaged.
"""

import sys

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import tensorflow as tf

hvd.init()
ranks = int(sys.argv[1])
if hvd.size() != ranks:
    sys.exit(f"{hvd.size()} of {ranks} ranks meet")
tf.keras.utils.set_random_seed(hvd.rank())  # each rank has its own data, so its own gradients
model = tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(4,))])
hvd.broadcast_variables(model.variables, root_rank=0)
model.compile(hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), "mse")
model.fit(tf.random.normal([8, 4]), tf.random.normal([8, 3]), batch_size=8, verbose=0)
weights = tf.concat([tf.reshape(one, [1, -1]) for one in model.variables], axis=1)
difference = float(tf.reduce_max(tf.abs(hvd.allgather(weights) - weights)))
if not difference < 1e-6:
    sys.exit(
        f"after one step the ranks' weights differ by {difference}: gradients are not averaged"
    )
