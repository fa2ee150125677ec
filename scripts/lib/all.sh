# shellcheck shell=bash
# Everything that the scripts share. CHECKOUT is the checkout's folder.

CHECKOUT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export CHECKOUT
# shellcheck source=clusterctl/bootstrap/shell/base.sh
. "$CHECKOUT/clusterctl/bootstrap/shell/base.sh"
# shellcheck source=clusterctl/bootstrap/shell/packages.sh
. "$CHECKOUT/clusterctl/bootstrap/shell/packages.sh"
# shellcheck source=scripts/lib/venv.sh
. "$CHECKOUT/scripts/lib/venv.sh"
# shellcheck source=scripts/lib/training.sh
. "$CHECKOUT/scripts/lib/training.sh"
