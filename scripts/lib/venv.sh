# shellcheck shell=bash
# launcher_venv EXTRA: install clusterctl, editable, in <checkout>/.venv. EXTRA is lab or dev.

launcher_venv() {
    local extra=${1:-lab}
    (launcher_venv_locked "$extra")
}

launcher_venv_locked() {
    local extra=$1 venv=$CHECKOUT/.venv sum have
    local stamp=$venv/.clusterctl-extra
    lock_folder "$CHECKOUT"
    sum=$(cat "$CHECKOUT/setup.cfg" "$CHECKOUT/pyproject.toml" | sha256sum | cut -c1-16)
    have=$(cat "$stamp" 2>/dev/null || true)
    # The dev extra includes the lab extra.
    if [[ $have == "$extra $sum" || $have == "dev $sum" ]]; then
        say "launcher: $venv is up to date ([${have% *}])"
        return
    fi
    apt_ensure python3-venv
    [[ -x $venv/bin/pip ]] || /usr/bin/python3 -m venv --clear "$venv"
    say "launcher: installing clusterctl[$extra] into $venv"
    rm -f "$stamp"
    # uv installs ten times as fast as pip.
    quietly "$venv/install.log" "$venv/bin/pip" install --no-input --progress-bar off 'uv>=0.5'
    quietly "$venv/install.log" "$venv/bin/uv" pip install --python "$venv/bin/python" \
        -e "${CHECKOUT}[$extra]"
    echo "$extra $sum" >"$stamp"
}
