# shellcheck shell=bash
# apt_ensure PKG...: install the Debian/Ubuntu packages that are missing, and only those.

# shellcheck source=clusterctl/bootstrap/shell/packages.sh
. "$CHECKOUT/clusterctl/bootstrap/shell/packages.sh"
