# Shared by the tests of runs that are interrupted: a small run that uses all that a checkpoint holds, what it gives
# when nothing happens, and the comparison with that. To be sourced at the repository's root.
. dev/test/program_fixture.sh

text "$folder/text"
"$build"/prepare_bytes --out "$folder/src" "$folder/text" >/dev/null || exit 1
data=$folder/src_train.bin val=$folder/src_val.bin
steps=160 every=16
# FP8 moments, weights without masters (rounded at random), several micro-batches, and a guard that skips some steps
run=(--tokenizer bytes --layers 1 --heads 2 --channels 32 --seq-len 32 --micro-batch 4 --batch-tokens 256
    --recipe coat --master none --skip-grad-z 0.1 --max-skipped 1000000 --lr 3e-3 --sample-tokens 0 --quiet --threads 1
    --train "$data" --val "$val" --val-every 20 --val-batches 20 --steps $steps --save-every $every)
last=$(printf 'step-%08d' $steps)
export OMP_NUM_THREADS=1 # the products' too: the machine's cores may be busy


# The run without interruption, in $folder/straight.
straight() {
    "$program" "${run[@]}" --out "$folder/straight" >/dev/null || { bad "the run without interruption"; exit 1; }
    grep -q '"skipped"' "$folder/straight/log.jsonl" || bad "the guard skips some steps of it"
}

# same OUT [PATTERN]: its last checkpoint and its log are the uninterrupted run's, byte for byte, but for lines that match
# PATTERN in both, and nothing half-written is left.
same() {
    diff -r "$folder/straight/$last" "$1/$last" >&2 || return 1
    diff <(strip "$folder/straight/log.jsonl" | grep -v "${2:-^$}") <(strip "$1/log.jsonl" | grep -v "${2:-^$}") >&2 || return 1
    [ -z "$(find "$1" -name '.*' ! -name . ! -path "$1")" ] || { ls -a "$1" >&2; return 1; }
}

resume() { "$program" "${run[@]}" --out "$1" --resume "${@:2}" >/dev/null; }
