# lib.sh - sourced by the scripts of this directory: a scratch directory, a tiny model, and checks that say what they saw.
#
# A script is called with the built command and the directory of the programs behind its verbs, and finds plugins in ORDO_PLUGIN_PATH.
ordo=$1
export ORDO_LIBEXEC=$2 OPENBLAS_NUM_THREADS=1 HWLOC_HIDE_ERRORS=2 NO_COLOR=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
for i in $(seq 400); do echo "line $i of a text that nobody has written for reading"; done >text.txt

fail() { echo "FAILED: $*"; echo "--- what was said:"; cat said 2>/dev/null; exit 1; }

# train WORDS...: a model of 6736 parameters, 5 steps, into `out` over what was there; everything it says is in `said`, its exit code in $code.
train() {
  code=0
  timeout -k 5 100 "$ordo" train --data.train text.txt --model.layers 1 --model.hidden_size 16 --model.intermediate_size 32 \
    --model.heads 2 --train.batch 4 --train.seq_len 16 --train.steps 5 --log.progress plain --log.peak false --train.output out --train.overwrite "$@" \
    >said 2>&1 || code=$?
}

# expect CODE WORD...: the exit code, and every word is said.
expect() {
  local wanted=$1 word; shift
  [ "$code" = "$wanted" ] || fail "exit code $code, expected $wanted"
  for word in "$@"; do grep -qF -- "$word" said || fail "'$word' was not said"; done
}
