#!/bin/sh
# Train ResNet-50 on synthetic data on 32 GPUs, to check that the nodes reach each other:
#
#     ./train_synthetic.sh 32
#
# Run this on the head node. The nodes are those in the `hosts` file of this folder. The script
# prints each mpirun command and runs it.
# Further arguments, such as --num_batches 100, go to the trainer.
case $#:$2 in
    0:* | *:[!-]*)
        echo "Usage: $0 <num_gpus>"
        exit 1
        ;;
esac
cd "$(dirname "$0")" || exit 1
launcher=$HOME/.clusterctl/launch.pyz
if [ ! -e "$launcher" ]; then
    echo "error: $launcher is missing; \`clusterctl up NAME\` puts it on every node" >&2
    exit 1
fi
exec python3 "$launcher" synthetic "$@"
