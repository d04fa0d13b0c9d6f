#!/bin/sh
# Starts this site and stays in the foreground. Usage: ./start.sh DATA, where DATA is this site's own data.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
if [ "$#" -lt 1 ]; then
    echo "usage: $0 DATA (a folder of images, a CSV of labels or an npz file)" >&2
    exit 2
fi
data=$1
shift
exec "${PROXYFL:-proxyfl}" deploy site "$here" --data "$data" "$@"
