#!/bin/sh
# Train ResNet-50 on synthetic data, to see that the nodes reach each other:
#
#     ./train_synthetic.sh 32
#
# on the head node, with the `hosts` file of this folder. It prints the mpirun line and runs it.
if [ $# -ne 1 ]; then
    echo "Usage: $0 <num_gpus>"
    exit 1
fi
cd "$(dirname "$0")" || exit 1
launcher=$HOME/.clusterctl/launch.pyz
if [ ! -e "$launcher" ]; then
    echo "error: $launcher is missing; \`clusterctl up NAME\` puts it on every node" >&2
    exit 1
fi
exec python3 "$launcher" synthetic "$1"
