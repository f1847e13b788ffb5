fail() { echo "$0: $1" >&2; exit 2; }
bytes=$(wc -c < "$0")
[ "$bytes" -eq @BYTES@ ] || fail "must have @BYTES@ bytes, but has $bytes; copy or download it again"
for python in @NAMES@; do
  if command -v "$python" > /dev/null && "$python" -ISc 'import sys, _lzma; sys.exit(sys.version_info[:2] not in (@VERSIONS@,))' 2> /dev/null; then
    exec "$python" -IS "$0" "$@"
  fi
done
fail "needs CPython @WORDS@ with its module lzma, but found none on the PATH; install it"
