# shellcheck shell=bash
# The base of all scripts: CHECKOUT, the checkout's folder, and functions for messages.

CHECKOUT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export CHECKOUT
# shellcheck source=clusterctl/bootstrap/shell/base.sh
. "$CHECKOUT/clusterctl/bootstrap/shell/base.sh"
