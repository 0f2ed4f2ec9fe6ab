# script.sh - sourced by tests that are shell scripts: a directory that is removed at the end ($dir), and failures that are counted ($failed).
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0

fail() {
  echo "FAIL $*"
  failed=1
}

# code WORD COMMAND...: the command must end with the code and say the word on standard error.
expect() {
  code=$1 word=$2
  shift 2
  "$@" >"$dir/out" 2>"$dir/err"
  got=$?
  if [ "$got" != "$code" ] || ! grep -q -- "$word" "$dir/err"; then
    fail "$* ended with $got (wanted $code) or did not say '$word':"
    cat "$dir/err"
  else
    echo "ok   exit $code: $word"
  fi
}
