#!/bin/sh
# Train ResNet-50 on ImageNet on 32 GPUs, then evaluate it on this node's GPUs:
#
#     ./train.sh 32
#
# Run this on the head node. The nodes are those in the `hosts` file of this folder, and each needs
# the data in ~/data/tf-imagenet. The script prints each mpirun command and runs it.
#
# If the log folder has an earlier run, --clear deletes that run and --resume continues it.
# --recipe fast: settings for speed. --no-eval: do not evaluate. --force: train even if the checks
# before the training fail.
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
exec python3 "$launcher" train "$@"
