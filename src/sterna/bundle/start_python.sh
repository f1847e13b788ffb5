fail() { echo "$0: $1" >&2; exit 2; }
bytes=$(wc -c < "$0")
[ "$bytes" -eq @BYTES@ ] || fail "must have @BYTES@ bytes, but has $bytes; copy or download it again"
cache=${STERNA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sterna}
case $cache in [oO][fF][fF])
  cache=$(mktemp -d) || fail "needs a folder for temporary files"
  trap 'rm -rf "$cache"' EXIT
  temporary=yes
esac
home=$cache/bundle-python-@DIGEST@
packed() { tail -c +@FROM@ "$0" | head -c @SIZE@; }
if [ ! -d "$home" ]; then
  sum=$(packed | { sha256sum 2> /dev/null || shasum -a 256 2> /dev/null; } | cut -c -64)
  [ -z "$sum" ] || [ "$sum" = @SUM@ ] || fail "its Python must have SHA-256 @SUM@, but got $sum; copy or download it again"
  mkdir -p "$cache" && new=$(mktemp -d "$home.XXXXXX") || fail "cannot write to $cache; set STERNA_CACHE"
  packed | tar -xzf - -C "$new" || { rm -rf "$new"; fail "cannot unpack its Python to $cache"; }
  [ -d "$home" ] || mv "$new" "$home"
  rm -rf "$new"
fi
if [ "$temporary" ]; then
  "$home/bin/python3" -IS "$0" "$@"
  exit
fi
exec "$home/bin/python3" -IS "$0" "$@"
