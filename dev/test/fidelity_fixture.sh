# Sourced, in the repository's root, by the tests of scripts/lab.py fidelity. Hides the machine's GPUs. $folder/gpus has
# an nvidia-smi that shows two GPUs, and $folder/pretend a program that pretends to train on them.
# shellcheck shell=bash disable=SC2034 # the tests read these variables
. dev/test/program_fixture.sh
lab_tests 2 RECIPES SEEDS MODEL BATCH TRAINING STEPS SAVES JOBS TEXT TEXTS FROM TO EVALUATE LIMIT EIGHTH_LIMIT KEEP_BRANCH_POINTS
export VERSION=tested

# The fake trainer reports:
# - Training loss: BF16 40 - step; COAT 1 % more, from step 18 on 3 % more.
# - Final validation loss: BF16 3 with seed 1, 3.06 with other seeds; COAT 1 % more with seed 1, 3 % more with other
#   seeds. Micro-batches of 16 add 0.006.
# - COAT's weights in --eval-only: 0.5 % above BF16's weights if evaluated in BF16, 1 % above if evaluated in COAT.
# - Loss on files named wiki: BF16 3.4 with seed 1, 3.5 with other seeds; COAT 1 % and 3 % more. On other texts: 4.
# - Fraction of right answers on files named asked: 91 % with seed 1, 93 % with seed 3.
# - --head=fp8 makes training diverge at step 11; --recompute=0 makes the GPU fail at the start.
# With SLOW=RECIPE:STEP, it waits at that step for a signal. With LOST=NAME, the evaluation of files of this name fails.
cat >"$folder/pretend/train_gpt2_fp8" <<'END'
#!/usr/bin/env bash
ends=0 evaluates='' plans='' told='' at=0 of=scratch
while [ $# -gt 0 ]; do
    case $1 in
    --recipe | --seed | --steps | --out | --model | --val) declare "${1#--}=$2"; shift ;;
    --micro-batch) micro=$2; shift ;;
    --val-batches) batches=$2; shift ;;
    --save-every) every=$2; shift ;;
    --eval-only) evaluates=yes ;;
    --plan=json) plans=yes ;;
    --head=fp8) ends=4 ;;
    --recompute=0) ends=3 ;;
    esac
    shift
done
if [ -n "$plans" ]; then
    [ "$recipe" != coatt ] || { echo "error: --recipe coatt: must be one of bf16|fp8-linear|coat" >&2; exit 1; }
    exit
fi
if [ -n "$evaluates" ]; then
    [ "$recipe" != lost ] || { echo "error: the GPU is lost" >&2; exit 3; }
    [ -z "${LOST:-}" ] || [[ $val != */$LOST* ]] || { echo "error: the GPU is lost" >&2; exit 3; }
    read -r of seed <"$model/of"
    [[ $val = */val ]] || echo "$of $seed@$micro in $recipe: $batches of ${val##*/}" >>"$CALLS.texts"
    case $val-$recipe-$of-$seed in
    */wiki*-bf16-bf16-1) loss=3.4 ;; */wiki*-bf16-bf16-*) loss=3.5 ;; */wiki*-coat-coat-1) loss=3.434 ;; */wiki*-coat-coat-*) loss=3.605 ;;
    */val-bf16-bf16-*) loss=3 ;; */val-bf16-*) loss=3.015 ;; */val-coat-bf16-*) loss=3.006 ;; */val-*) loss=3.03606 ;;
    *) loss=4 ;;
    esac
    case $val in */asked*) right=",\"val_accuracy\":0.9$seed" ;; *) right='' ;; esac
    echo "{\"step\":$((10#${model##*step-})),\"val_loss\":$loss$right}"
    exit
fi
for folder in "$out"/step-*; do [ ! -e "$folder" ] || { at=$((10#${folder##*step-})) of=$(<"$folder/of"); }; done
[ ! -e "$out/log.jsonl" ] || sed -i "$((at + 1)),\$d" "$out/log.jsonl"
case $out in */branch-points/*) to=", branch point" ;; *) to='' ;; esac
# No $( ) from here on, because bash 5.2 may lose a signal that arrives while it reads one.
trap 'told=yes' TERM
log=0
[ ! -e "$out/log.jsonl" ] || while read -r line; do log=$((log + 1)); done <"$out/log.jsonl"
echo "GPU $CUDA_VISIBLE_DEVICES: $recipe $seed@$micro from $of $at, log $log$to" >>"$CALLS"
sleep 0.2 # lets the other GPU run
[ $ends -ne 3 ] || { echo "error: the GPU is lost" >&2; exit 3; }
save() { # STEP
    local name
    printf -v name %08d "$1"
    mkdir -p "$out/.part-$name"
    echo "$recipe $seed" >"$out/.part-$name/of"
    mv -T "$out/.part-$name" "$out/step-$name" 2>/dev/null
}
while read -r line; do
    echo "$line" >>"$out/log.jsonl"
    at=$((at + 1))
    [ "$recipe:$at" != "$SLOW" ] || for ((i = 0; i < 1000; i++)); do [ -z "$told" ] || break; sleep 0.02; done
    [ -z "$told" ] || { save $at; exit 0; }
    case $((at % every))-$to in 0-?*) save $at; sleep 0.4 ;; 0-*) save $at ;; esac
done < <(awk -v recipe="$recipe" -v seed="$seed" -v steps="$steps" -v ends="$ends" -v at="$at" 'BEGIN {
    for (s = at + 1; s <= (ends ? 11 : steps); s++)
        printf "{\"step\":%d,\"loss\":%.9g,\"grad_norm\":%g,\"ms\":%d}\n", s, (40 - s) * (recipe != "coat" ? 1 : s > 17 ? 1.03 : 1.01), (s == 5 ? 12.5 : 9.5), s == 1 ? 900 : recipe != "coat" ? 100 : 80
}')
[ $ends -eq 0 ] || exit $ends
[ $at -eq "$steps" ] || exit 5
save "$steps"
awk -v recipe="$recipe" -v seed="$seed" -v steps="$steps" -v micro="$micro" 'BEGIN {
    val = (seed == 1 ? 3 : 3.06) * (recipe != "coat" ? 1 : seed == 1 ? 1.01 : 1.03) + (micro == 16) * 0.006
    printf "{\"step\":%d,\"val_loss\":%.9g}\n", steps, val
}' >>"$out/log.jsonl"
END
chmod +x "$folder"/pretend/*
head -c 100000 /dev/zero >"$folder/train_000000.bin"
head -c 100000 /dev/zero >"$folder/val"
pretend() { # RECIPES SEEDS [SETTING...]: runs the study $folder/study with the fake trainer
    PATH="$folder/gpus:$path" BIN=$folder/pretend CALLS=$folder/calls RECIPES=$1 SEEDS=$2 STEPS=${steps:-20} \
        scripts/lab.py fidelity --out "$folder/study" "$folder/train*" "$folder/val" "${@:3}" 2>&1
}
page_of() { sed -n '/^## /,$p' "$1/fidelity.md"; } # STUDY: prints its page from the first section on
# figures STUDY SETTING RECIPE SEED [COLUMN,...]: prints these columns (default: the first 16) of a run's row in
# fidelity.tsv; nothing if the run has not ended
figures() {
    awk -F'\t' -v run="$2 $3 $4" -v columns="${5:-}" '
        /^#/ { next }
        !n { n = columns == "" ? 16 : split(columns, name, ","); for (i = 1; i <= NF; i++) { at[$i] = i; if (columns == "") name[i] = $i } next }
        $1 " " $2 " " $3 == run { for (i = 1; i <= n; i++) printf "%s%s", name[i] in at ? $at[name[i]] : "-", i < n ? " " : "\n" }
    ' "$1/fidelity.tsv" 2>/dev/null
}
