# shellcheck shell=bash
# apt_ensure PACKAGE...: install the Debian/Ubuntu packages that are missing, and no others.

apt_ensure() {
    if ! command -v apt-get >/dev/null; then
        say "apt: not on this machine; these need to be there already: $*"
        return
    fi
    local package missing=()
    for package in "$@"; do
        apt_installed "$package" || missing+=("$package")
    done
    if [[ ${#missing[@]} -eq 0 ]]; then
        say "apt: $* already installed"
        return
    fi
    can_be_root || die "packages are missing, and neither root nor sudo is at hand. As root, run:
    apt-get update && apt-get install -y ${missing[*]}"
    say "apt: installing ${missing[*]}"
    # One broken source makes the update fail; the packages may still be available.
    apt_get update || say "apt: update failed, trying with the lists at hand"
    apt_get install -y --no-install-recommends "${missing[@]}" ||
        die "apt could not install ${missing[*]}"
}

apt_installed() {
    [[ $(dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null) == ii* ]]
}

apt_get() {
    local log status=0
    log=$(mktemp)
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=600 "$@" \
        >"$log" 2>&1 </dev/null || status=$?
    [[ $status -eq 0 ]] || tail -n 20 "$log" >&2
    rm -f "$log"
    return $status
}
