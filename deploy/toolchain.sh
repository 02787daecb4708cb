#!/bin/sh
# Finds Python and uv, keeps .venv as uv.lock says, and runs a command in that environment. Used by the Makefile.
#
#   toolchain.sh sync          make .venv what uv.lock says, with the tools of development; at once where it is already
#   toolchain.sh dev COMMAND   the same, then become COMMAND
#   toolchain.sh run COMMAND   the same without those tools; where they are there already, they stay
#   toolchain.sh uv ARGUMENT   run uv
#
# PYTHON and UV choose other programs than the first suitable ones on PATH.
set -eu

UV_PINNED=0.13.8
UV_LEAST_MINOR=9
cd "$(dirname "$0")/.."
here=$(pwd -P)

say() { echo "turnwise: $*" >&2; }
fail() { say "$*"; exit 1; }

# The interpreter behind shims and virtual environments, if it is 3.11 or newer.
resolve_python() {
    "$1" -c 'import sys
if sys.version_info < (3, 11): sys.exit(1)
print(getattr(sys, "_base_executable", None) or sys.executable)' 2>/dev/null
}

find_python() {
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if python=$(resolve_python "$candidate"); then return; fi
    done
    fail "Python 3.11 or newer is needed (Debian: apt-get install python3 python3-venv); PYTHON=/path/to/python3 names one"
}

# uv 0.9 or newer: prints its version as "uv 0.13.8 (…)".
uv_is_good() {
    version=$("$1" --version 2>/dev/null) || return 1
    version=${version#uv }
    major=${version%%.*}
    rest=${version#*.}
    minor=${rest%%.*}
    [ "$major" -gt 0 ] 2>/dev/null || [ "$minor" -ge "$UV_LEAST_MINOR" ] 2>/dev/null
}

find_uv() {
    if [ -n "${UV:-}" ]; then
        uv_is_good "$UV" || fail "UV=$UV is not uv 0.$UV_LEAST_MINOR or newer"
        uv=$UV
    elif uv=$(command -v uv) && uv_is_good "$uv"; then
        :
    else
        uv=$here/.tools/uv/bin/uv
        uv_is_good "$uv" || install_uv
    fi
    TURNWISE_UV=$uv
    export TURNWISE_UV
}

# Debian refuses a system-wide pip install, so uv gets a virtual environment of its own.
install_uv() {
    "$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python cannot make virtual environments. \
Debian: apt-get install python3-venv. Or install uv 0.$UV_LEAST_MINOR or newer yourself."
    say "installing uv $UV_PINNED into .tools/uv"
    rm -rf .tools/uv
    "$python" -m venv .tools/uv || fail "cannot make the virtual environment .tools/uv"
    env -u PIP_USER -u PIP_TARGET -u PIP_PREFIX .tools/uv/bin/python -m pip install \
        --quiet --no-cache-dir --disable-pip-version-check "uv==$UV_PINNED" || fail "pip could not install uv"
    uv_is_good "$uv" || fail "the uv that pip installed does not run"
}

# Where uv may keep its cache: the usual place if it can be written, else the checkout.
choose_cache() {
    cache=${UV_CACHE_DIR:-}
    [ -n "$cache" ] || cache=${XDG_CACHE_HOME:+$XDG_CACHE_HOME/uv}
    [ -n "$cache" ] || cache=${HOME:+$HOME/.cache/uv}
    if [ -z "$cache" ] || ! writable "$cache"; then cache=$here/.tools/uv-cache; fi
    UV_CACHE_DIR=$cache
    export UV_CACHE_DIR
}

writable() {
    mkdir -p "$1" 2>/dev/null && (: >"$1/.turnwise-probe") 2>/dev/null && rm -f "$1/.turnwise-probe"
}

# One Python, ours; never a download, never another environment.
settle() {
    # Without bytecode, which some shells forbid, each start of a service compiles all of ours again. What works only
    # without buffers would be seen by nobody who has set the other one.
    unset PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED
    [ -z "${PYTHONPATH:-}" ] || say "PYTHONPATH is not passed on: agents are imported from ai.agents_path (./agents)"
    unset PYTHONHOME PYTHONPATH VIRTUAL_ENV CONDA_PREFIX UV_MANAGED_PYTHON UV_SYSTEM_PYTHON
    find_python
    find_uv
    choose_cache
    UV_PYTHON=$python
    UV_PYTHON_DOWNLOADS=never
    UV_PYTHON_PREFERENCE=only-system
    UV_PROJECT_ENVIRONMENT=$here/.venv
    # uv brings its own list of certificates; the system's also knows the one of a company's proxy. Two names, by age.
    if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
        export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}" UV_NATIVE_TLS="${UV_NATIVE_TLS:-1}"
    fi
    export UV_PYTHON UV_PYTHON_DOWNLOADS UV_PYTHON_PREFERENCE UV_PROJECT_ENVIRONMENT
}

# The stamp says for which place, Python and lock .venv was made, and with which groups. Scripts in it hold its place:
# moved, it is remade. The tools of development are added to what is there and never taken away: what runs out of .venv
# keeps running, and who changes between `make run` and `make test` waits once.
sync() {
    settle
    stamp=.venv/.turnwise-stamp
    made=$(cat $stamp 2>/dev/null || :)
    case $made in *" with dev") groups=dev ;; *) groups=$1 ;; esac
    wanted="$here $python $("$python" -V) $(cat pyproject.toml uv.lock | cksum) with $groups"
    if [ -x .venv/bin/python ] && [ "$made" = "$wanted" ]; then return; fi
    case $made in "" | "$here "*) ;; *) rm -rf .venv ;; esac
    say "making .venv from uv.lock with $("$python" -V)"
    [ "$groups" = dev ] || groups_not="--no-default-groups"
    # Compiled now, because the environment may forbid Python to write bytecode later, and then each start pays.
    "$uv" sync --frozen --all-extras ${groups_not:-} --compile-bytecode || fail "uv could not make .venv"
    echo "$wanted" >$stamp
}

action=${1:-sync}
[ $# -eq 0 ] || shift
case $action in
    sync) sync dev ;;
    dev) sync dev && exec "$@" ;;
    run) sync run && exec "$@" ;;
    uv) settle && exec "$uv" "$@" ;;
    *) fail "unknown action $action: sync, dev, run or uv" ;;
esac
