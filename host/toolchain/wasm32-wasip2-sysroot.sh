#!/bin/sh
# Builds Rust's standard library for wasm32-wasip2 where rustup cannot fetch it. See `usage` below.
set -eu

target=wasm32-wasip2
# Debian's suite that carries `rust-src` for several Rust versions at once, and `wasi-libc`.
suite=trixie-backports

usage() {
    cat <<'END'
usage: wasm32-wasip2-sysroot.sh [--existing | --help]

Builds a private sysroot with Rust's standard library for wasm32-wasip2, for the rustc that is used in the
current folder, from Debian's packages `rust-src` and `wasi-libc`. Needs a Debian machine and its package
archive, not root. The installed Rust toolchain stays as it is.

Prints the path of the sysroot to stdout, progress to stderr. Use it with
    CARGO_TARGET_WASM32_WASIP2_RUSTFLAGS=--sysroot=<path> cargo build --target wasm32-wasip2

    --existing   only print the path of a sysroot that was built before; exit with 3 if there is none

The sysroot goes to ${XDG_CACHE_HOME:-$HOME/.cache}/onemark/sysroot/<rustc version>-<commit hash>.
END
}

progress() {
    printf '%s: %s\n' "$target" "$*" >&2
}

fail() {
    progress "error: $1"
    shift
    for line in "$@" "install the target with \`rustup target add $target\`, or set ONEMARK_WASM_SYSROOT to a sysroot that has it"; do
        progress "  $line"
    done
    exit 1
}

# Runs a command that is not of interest unless it fails; then its last lines are.
quietly() {
    if ! "$@" >"$work/log" 2>&1; then
        tail -n 20 "$work/log" >&2
        return 1
    fi
}

# The toolchain is asked once, here: a toolchain override applies to the current folder, and cargo runs in
# another one below.
find_toolchain() {
    command -v "${RUSTC:-rustc}" >/dev/null 2>&1 || fail "there is no \`${RUSTC:-rustc}\` on this machine"
    rust_home=$("${RUSTC:-rustc}" --print sysroot) || fail "\`${RUSTC:-rustc}\` does not work"
    rustc=$rust_home/bin/rustc
    [ -x "$rustc" ] || rustc=${RUSTC:-rustc}
    cargo=$rust_home/bin/cargo
    [ -x "$cargo" ] || cargo=cargo

    version=$("$rustc" -vV)
    release=$(printf '%s\n' "$version" | sed -n 's/^release: //p')
    commit=$(printf '%s\n' "$version" | sed -n 's/^commit-hash: //p')
    [ -n "$release" ] && [ -n "$commit" ] || fail "\`$rustc -vV\` does not tell its release and commit"
}

has_standard_library() {
    ls "$1/lib/rustlib/$target/lib/"libstd-*.rlib >/dev/null 2>&1
}

check_machine() {
    for tool in apt-get apt-cache dpkg dpkg-deb tar flock timeout; do
        command -v "$tool" >/dev/null 2>&1 ||
            fail "building it from source needs a Debian machine, and there is no \`$tool\` here"
    done
    keyring=
    for file in /usr/share/keyrings/debian-archive-keyring.gpg /usr/share/keyrings/debian-archive-keyring.pgp; do
        [ -e "$file" ] && keyring=$file
    done
    [ -n "$keyring" ] ||
        fail "building it from source needs a Debian machine, and Debian's archive keyring is not here"
}

# The archives of the machine's own apt sources that carry a main release of Debian, as apt reads them.
archives() {
    codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
    apt-get update --print-uris 2>/dev/null |
        sed -n "s#^'\(.*\)/dists/\([^/']*\)/InRelease'.*#\2 \1#p" |
        while read -r release_name uri; do
            case $release_name in
                "$codename" | stable | testing | unstable | sid | "$suite") printf '%s\n' "$uri" ;;
            esac
        done | awk '!seen[$0]++'
}

# apt with lists and caches of its own. What the machine configures (proxies, checks) stays in force, except
# for hooks that run after an update.
configure_apt() {
    mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
    cat >"$work/apt/apt.conf" <<END
#clear APT::Update;
APT::Update::Error-Mode "any";
APT::Sandbox::User "root";
Dir::Etc::SourceList "$work/apt/sources.list";
Dir::Etc::SourceParts "-";
Dir::State::Lists "$work/apt/lists";
Dir::Cache "$work/apt/cache";
Acquire::Languages "none";
Acquire::Retries "1";
Acquire::http::Timeout "15";
Acquire::https::Timeout "15";
END
}

download_packages() {
    progress "looking for the sources of Rust $release in Debian's $suite"
    configure_apt
    found=
    candidates=$(archives)
    [ -n "$candidates" ] || fail "the apt sources of this machine name no Debian archive"
    for uri in $candidates; do
        printf 'deb [signed-by=%s arch=%s target=Packages] %s %s main\n' \
            "$keyring" "$(dpkg --print-architecture)" "$uri" "$suite" >"$work/apt/sources.list"
        if quietly timeout --foreground -k 5 90 apt-get -c "$work/apt/apt.conf" -q update; then
            found=$uri
            break
        fi
        progress "could not read $suite from $uri"
    done
    [ -n "$found" ] || fail "no Debian archive of this machine's apt sources could be read; is there a network?"

    available=$(apt-cache -c "$work/apt/apt.conf" madison rust-src | awk -F'|' '{ gsub(/ /, "", $2); print $2 }')
    rust_src=
    for candidate in $available; do
        case $candidate in
            "$release"[+-]*) rust_src=$candidate && break ;;
        esac
    done
    [ -n "$rust_src" ] || fail "Debian's $suite has no sources of Rust $release, only of:" \
        "$(printf '%s ' $available)" "use one of these Rust versions, or:"

    progress "fetching rust-src $rust_src and wasi-libc (about 50 MB)"
    # The working folder is where apt-get puts what it downloads.
    (cd "$work/apt" && quietly timeout --foreground -k 5 900 \
        apt-get -c apt.conf -q download "rust-src=$rust_src" wasi-libc) ||
        fail "could not fetch the packages; is there a network?"
}

unpack_packages() {
    mkdir "$work/rust-src" "$work/wasi-libc"
    # The compiler's own sources, nine tenths of the package, are of no use here.
    dpkg-deb --fsys-tarfile "$work"/apt/rust-src_*.deb |
        tar -x -C "$work/rust-src" "./usr/src/rustc-$release/library"
    library=$work/rust-src/usr/src/rustc-$release/library
    dpkg-deb -x "$work"/apt/wasi-libc_*.deb "$work/wasi-libc"
    libc=$work/wasi-libc/usr/lib/$target
    [ -e "$library/Cargo.lock" ] && [ -e "$libc/libc.a" ] ||
        fail "Debian's packages do not hold what is expected of them"
}

# cargo for the empty crate whose build makes the standard library. Settings of the user's other builds must
# not reach it: they would change the result, or where it goes.
cargo_for_std() (
    for name in $(env | sed -n 's/^\(CARGO_PROFILE_[A-Z0-9_]*\)=.*/\1/p'); do
        unset "$name"
    done
    unset RUSTFLAGS CARGO_BUILD_TARGET
    # An absolute path in a panic message would tell the user's folders, and change the component's digest.
    cargo_home=${CARGO_HOME:-${HOME:-}/.cargo}
    separator=$(printf '\037')
    # Without bitcode, guests with `lto = true` do not link.
    CARGO_ENCODED_RUSTFLAGS=-Cembed-bitcode=yes$separator--remap-path-prefix=$library=/rustc/$commit/library$separator--remap-path-prefix=$cargo_home/registry/src=/rust/deps
    # `RUSTC_BOOTSTRAP` allows `-Z build-std` on a stable toolchain; the source root variable is how cargo's own
    # tests, and the tools that build a sysroot, point it at a library outside the toolchain.
    export CARGO_ENCODED_RUSTFLAGS \
        RUSTC="$rustc" RUSTC_BOOTSTRAP=1 RUSTC_WRAPPER='' RUSTC_WORKSPACE_WRAPPER='' \
        __CARGO_TESTS_ONLY_SRC_ROOT="$library" \
        CARGO_TARGET_DIR="$work/target" CARGO_BUILD_BUILD_DIR="$work/target" \
        CARGO_HTTP_TIMEOUT=15 CARGO_NET_RETRY=1
    cd "$work/crate"
    command=$1
    shift
    quietly timeout --foreground -k 5 900 "$cargo" "$command" -Z build-std=std,panic_abort --target "$target" "$@"
)

build_standard_library() {
    mkdir -p "$work/crate/src"
    : >"$work/crate/src/lib.rs"
    cat >"$work/crate/Cargo.toml" <<'END'
[package]
name = "empty"
version = "0.0.0"
edition = "2021"

[workspace]
END
    # Fetching apart from building tells a network that is not there from a build that fails.
    progress "fetching the crates that the standard library is built from"
    cargo_for_std fetch || fail "could not fetch the crates; is there a network?"
    progress "building the standard library with rustc $release (about a minute)"
    cargo_for_std build --release --offline || fail "the standard library did not build"
}

# Puts the sysroot together aside and renames it into its place, so that a part is never taken for the whole.
install_sysroot() {
    lib=$work/sysroot/lib/rustlib/$target/lib
    mkdir -p "$lib/self-contained"
    find "$work/target/$target/release" -name '*.rlib' ! -name 'libempty*' -exec cp {} "$lib" \;
    cp "$libc"/*.o "$libc"/*.a "$lib/self-contained"
    has_standard_library "$work/sysroot" || fail "the build left no standard library"
    find "$work/sysroot" -type f -exec sync {} +
    rm -rf "$sysroot"
    mv "$work/sysroot" "$sysroot"
}

existing=false
case ${1:-} in
    '') ;;
    --existing) existing=true ;;
    --help | -h) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
esac
[ $# -le 1 ] || { usage >&2 && exit 2; }

find_toolchain
[ -n "${XDG_CACHE_HOME:-}" ] || [ -n "${HOME:-}" ] || fail "neither XDG_CACHE_HOME nor HOME is set"
cache=${XDG_CACHE_HOME:-${HOME:-}/.cache}/onemark/sysroot
sysroot=$cache/$release-$commit

if has_standard_library "$sysroot"; then
    printf '%s\n' "$sysroot"
    exit 0
fi
if $existing; then
    exit 3
fi

check_machine
mkdir -p "$cache" || fail "cannot make the folder $cache"

# Programs started from here inherit the lock, so that it outlives this shell while one of them still writes.
exec 9>"$cache/.lock"
if ! flock -n 9; then
    progress "waiting for another build of a sysroot"
    flock -w 1800 9 || fail "another build has held $cache/.lock for half an hour"
fi

if ! has_standard_library "$sysroot"; then
    # Whoever holds the lock knows that these are what interrupted builds have left.
    rm -rf "$cache"/*.partial
    work=$sysroot.partial
    trap 'rm -rf "$work"' EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    mkdir "$work"

    download_packages
    unpack_packages
    build_standard_library
    install_sysroot
    progress "installed into $sysroot"
fi
printf '%s\n' "$sysroot"
