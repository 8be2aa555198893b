#!/bin/sh
# Pins every dependency, with hashes, into requirements.lock (what the library needs) and
# requirements-dev.lock (that plus the tools). The files name no download host: pip asks the index
# it is configured with, and the hashes decide whether the answer is accepted.
set -eu
cd "$(dirname "$0")/.."

pin() {
    output=$1
    shift
    rm -f "$output"
    uv pip compile pyproject.toml "$@" --quiet --no-header --universal --python-version 3.11 \
        --generate-hashes --no-emit-index-url --output-file "$output"
    {
        echo "# Pinned by \`make lock\` from pyproject.toml; do not edit."
        cat "$output"
    } >"$output.new"
    mv "$output.new" "$output"
}

pin requirements.lock
pin requirements-dev.lock --group dev
