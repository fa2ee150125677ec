# shellcheck shell=bash
# What every script here starts from: where the checkout is, and how to speak.

CHECKOUT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export CHECKOUT
# shellcheck source=clusterctl/bootstrap/shell/base.sh
. "$CHECKOUT/clusterctl/bootstrap/shell/base.sh"
