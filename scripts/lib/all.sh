# shellcheck shell=bash
# Everything that the scripts share. Source it from the checkout's root.

# shellcheck source=scripts/lib/base.sh
. scripts/lib/base.sh
# shellcheck source=scripts/lib/apt.sh
. scripts/lib/apt.sh
# shellcheck source=scripts/lib/venv.sh
. scripts/lib/venv.sh
# shellcheck source=scripts/lib/training.sh
. scripts/lib/training.sh
