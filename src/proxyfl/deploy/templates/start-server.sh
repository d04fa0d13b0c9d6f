#!/bin/sh
# Starts the server of this federation and stays in the foreground. Stop it with Ctrl-C.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
exec "${PROXYFL:-proxyfl}" deploy server "$here" "$@"
