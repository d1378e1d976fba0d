# Sourced, in the repository's root, by the tests of interrupted runs. Defines a small run that uses every part of a
# checkpoint, and functions that train it without interruption and compare other runs with the result.
. dev/test/program_fixture.sh

byte_data
steps=160 every=16
# FP8 moments, no master weights (stochastic rounding), several micro-batches, and an outlier guard that skips some steps
run=(--tokenizer bytes --layers 1 --heads 2 --channels 32 --seq-len 32 --micro-batch 4 --batch-tokens 256
    --recipe coat --master none --skip-grad-z 0.1 --max-skipped 1000000 --lr 3e-3 --sample-tokens 0 --quiet --threads 1
    --train "$data" --val "$val" --val-every 20 --val-batches 20 --steps $steps --save-every $every)
last=$(printf 'step-%08d' $steps)
export OMP_NUM_THREADS=1 # one thread, also for matmuls, because other cores may be busy

# Trains without interruption into $folder/straight.
straight() {
    "$program" "${run[@]}" --out "$folder/straight" >/dev/null || { bad "the uninterrupted run succeeds"; exit 1; }
    grep -q '"skipped"' "$folder/straight/log.jsonl" || bad "the outlier guard skips some steps"
}

# same OUT [PATTERN]: true if the last checkpoint and the log in OUT equal the uninterrupted run's byte for byte, except
# log lines that match PATTERN, times and settings, and if OUT contains no partial file.
same() {
    diff -r "$folder/straight/$last" "$1/$last" >&2 || return 1
    diff <(strip "$folder/straight/log.jsonl" | grep -v "${2:-^$}") <(strip "$1/log.jsonl" | grep -v "${2:-^$}") >&2 || return 1
    [ -z "$(find "$1" -name '.*' ! -name . ! -path "$1")" ] || { ls -a "$1" >&2; return 1; }
}

# resume OUT [FLAG...]: starts the run in OUT, or resumes it
resume() { "$program" "${run[@]}" --out "$1" --resume "${@:2}" >/dev/null; }
