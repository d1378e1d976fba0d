#!/usr/bin/env bash
# How training depends on the learning rate in each recipe, and how sharp the
# minimum is that it finds: trains a small model with every recipe, rate and seed,
# then moves the weights of one run per recipe along random directions. Writes
# OUT/stability.md, pictures beside it where Python has matplotlib, and everything
# that ran.
#
#   scripts/stability.sh [--dry-run] [--out runs/stability] [TRAIN_GLOB VAL_GLOB]
#
# Without token files it trains a model of bytes on this machine's headers. Runs
# that are finished are not done again when the study is started again, with more
# rates or seeds or after it was stopped; one that was stopped goes on from its
# last checkpoint. A run has diverged if the trainer says so (exit code 4) or if
# it ended above the loss of its first step; that is a result. Any other failure
# is told, the others go on, and the study ends with 1.
# expected, without token files, on two cores: 54 runs of a minute, and six
# minutes for the sharpness.
#
# Settings come from the environment:
#   RECIPES="bf16 fp8-linear coat"     a recipe may have flags behind it:
#                                      coat,scaling=tensor,head=fp8
#   RATES="5e-4 1e-3 2e-3 4e-3 8e-3 1.6e-2" SEEDS="1 2 3"
#   MODEL="--layers 6 ..."             flags of the model; BATCH="--seq-len ..."
#                                      of the batch and the validation;
#   TRAINING="--schedule ..."          the others; STEPS how long
#   DIRECTIONS=8 CURVES=2 POINTS=21    the curvature's directions (0: no
#                                      sharpness), how many of them are drawn, and
#                                      at how many distances from -1 to 1
#   JOBS=N                             runs at the same time (default: one per
#                                      GPU; 1 on a CPU)
#   TEXT=FOLDER                        what the model of bytes reads
#   BIN=. BUILD=build                  where the programs are
#
# Of the runs with the first seed the last checkpoint is kept, of the others none.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-.} build=${BUILD:-build}
out=runs/stability dry_run='' globs=()

. scripts/work.sh

while [ $# -gt 0 ]; do
    case $1 in
    --dry-run) dry_run=yes ;;
    --out) [ $# -gt 1 ] || stop "--out needs a folder"; out=$2; shift ;;
    --out=*) out=${1#--out=} ;;
    -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit ;;
    --*) stop "$1: not one of --dry-run, --out, --help" ;;
    *) globs+=("$1") ;;
    esac
    shift
done
case ${#globs[@]} in 0 | 2) ;; *) stop "token files: name TRAIN_GLOB and VAL_GLOB, or neither" ;; esac

check_token_files "${globs[@]}"

# --- settings -----------------------------------------------------------------------------------------------------

find_trainer
# The flags are words.
if [ ${#globs[@]} -eq 2 ]; then
    train_files=${globs[0]} val_files=${globs[1]} steps=${STEPS:-1600}
    read -r -a model <<<"${MODEL:---layers 6 --heads 6 --channels 384}"
    read -r -a batch <<<"${BATCH:---seq-len 1024 --micro-batch 32 --val-batches 20}"
else
    train_files=$out/text_train.bin val_files=$out/text_val.bin steps=${STEPS:-400}
    read -r -a model <<<"${MODEL:---layers 4 --heads 4 --channels 128} --tokenizer bytes"
    read -r -a batch <<<"${BATCH:---seq-len 128 --micro-batch 8 --val-batches 40}"
fi
read -r -a recipes <<<"${RECIPES:-bf16 fp8-linear coat}"
read -r -a rates <<<"${RATES:-5e-4 1e-3 2e-3 4e-3 8e-3 1.6e-2}"
read -r -a seeds <<<"${SEEDS:-1 2 3}"
directions=${DIRECTIONS:-8} curves=${CURVES:-2} points=${POINTS:-21}
check_numbers "STEPS $steps" "DIRECTIONS $directions" "CURVES $curves" "POINTS $points" "JOBS $jobs"
[ "$steps" -gt 0 ] || stop "STEPS: at least 1"
if [ $((points % 2)) -eq 0 ] || [ "$points" -lt 3 ]; then stop "POINTS: an odd number from 3 on, so that 0 is one of them"; fi
read -r -a training <<<"${TRAINING:---schedule cosine --warmup $((steps / 10)) --lr-final 0.1 --beta2 0.95 --weight-decay 0.1}"

# RECIPE[,FLAG=VALUE...]
recipe_flags() { echo "--recipe ${1//,/ --}"; }

check_built "$trainer" "$build/perturb_weights" "$build/prepare_bytes"

# --- losses -------------------------------------------------------------------------------------------------------

# One run. Its folder's `result` is written when it is finished: RECIPE RATE SEED STATUS LOSS FIRST_LOSS
train() { # RECIPE RATE SEED
    local folder=$out/runs/$1/$2/$3 status=0 loss='' first
    [ -n "$dry_run" ] || mkdir -p "$folder"
    [ ! -s "$folder/result" ] || return 0
    [ -n "$dry_run" ] || echo "training $1, rate $2, seed $3" >&2
    # shellcheck disable=SC2046 # words
    run "$folder/output.txt" "$trainer" "${model[@]}" $(recipe_flags "$1") "${batch[@]}" "${training[@]}" --train "$train_files" --val "$val_files" \
        --steps "$steps" --lr "$2" --seed "$3" --val-every 0 --sample-tokens 0 --quiet --save-every $((steps / 4 + 1)) --keep 1 \
        --out "$folder" --resume || status=$?
    [ -z "$dry_run" ] || return 0
    case $status in
    0) loss=$(sed -n "s/^{\"step\":$steps,\"val_loss\":\([^,}]*\).*/\1/p" "$folder/log.jsonl") ;;
    4) loss=null ;;
    *) failure "$1, rate $2, seed $3" $status "$folder/output.txt" || return ;;
    esac
    [ -n "$loss" ] || { failure "$1, rate $2, seed $3 did not come to its last step" 0 "$folder/output.txt" || return; }
    first=$(sed -n 's/^{"step":1,"loss":\([^,}]*\).*/\1/p' "$folder/log.jsonl")
    [ "$3" = "${seeds[0]}" ] || rm -rf "$folder"/step-*
    awk -v run="$1 $2 $3" -v loss="$loss" -v first="$first" 'BEGIN {
        finite = loss ~ /^[0-9]/
        print run, finite && loss + 0 <= first + 0 ? "done" : "diverged", finite ? loss : "-", first
    }' >"$folder/result.part"
    mv "$folder/result.part" "$folder/result"
}

collect_losses() {
    local recipe rate seed
    for recipe in "${recipes[@]}"; do
        for rate in "${rates[@]}"; do
            for seed in "${seeds[@]}"; do
                cat "$out/runs/$recipe/$rate/$seed/result" 2>/dev/null || echo "$recipe $rate $seed failed - -"
            done
        done
    done >"$out/losses.txt"
}

# --- sharpness ----------------------------------------------------------------------------------------------------

# The distances of a direction, as multiples of the weights' norm: 0 of none, all of those that are drawn, of others the
# two that curvature needs.
distances() { # DIRECTION
    awk -v direction="$1" -v curves="$curves" -v points="$points" 'BEGIN {
        half = (points - 1) / 2
        if (direction == 0) { print 0; exit }
        for (i = -half; i <= half; i++) if (i && (direction <= curves || i * i == 1)) printf "%.6g\n", i / half
    }'
}

# The rate with the lowest loss whose runs are all well, of each recipe that has one.
best_rates() { awk -v want=best -f scripts/stability_tables.awk "$out/losses.txt"; }

# One direction from the weights of the run at a recipe's best rate. Appends to the `sharpness` of its folder:
# DIRECTION DISTANCE LOSS
look_along() { # RECIPE RATE DIRECTION
    local folder=$out/runs/$1/$2/${seeds[0]} moved=$work/moved-${worker:-0} checkpoint status distance loss
    checkpoint=$folder/step-LAST
    [ -n "$dry_run" ] || checkpoint=$(find "$folder" -maxdepth 1 -name 'step-*' | sort | tail -n 1)
    [ -n "$checkpoint" ] || { echo "failed: $folder holds no checkpoint, so $1 has no sharpness" >&2; return 1; }
    for distance in $(distances "$3"); do
        [ -z "$stopped" ] || return 1
        ! grep -q "^$3 $distance " "$folder/sharpness" 2>/dev/null || continue
        status=0
        run "$moved.log" "$build/perturb_weights" "$checkpoint" "$moved" "$3" "$distance" || status=$?
        [ $status -eq 0 ] || { failure "moving the weights of $folder" $status "$moved.log" || return; }
        # shellcheck disable=SC2046 # words
        run "$moved.json" "$trainer" --eval-only --model "$moved" $(recipe_flags "$1") "${batch[@]}" --val "$val_files" --json --quiet --sample-tokens 0 ||
            status=$?
        [ $status -eq 0 ] || { failure "the loss of $1 at $distance along direction $3" $status "$moved.json" || return; }
        [ -z "$dry_run" ] || return 0
        loss=$(sed -n 's/.*"val_loss":\([0-9.e+-]*\)}.*/\1/p' "$moved.json")
        echo "$3 $distance ${loss:-nan}" >>"$folder/sharpness"
    done
}

collect_sharpness() {
    local recipe rate direction distance
    : >"$out/sharpness.txt"
    while read -r recipe rate; do
        for ((direction = 0; direction <= directions; direction++)); do
            for distance in $(distances "$direction"); do
                sed -n "s/^$direction $distance /$recipe &/p" "$out/runs/$recipe/$rate/${seeds[0]}/sharpness" 2>/dev/null || true
            done
        done
    done < <(best_rates) >>"$out/sharpness.txt"
}

# --- the page -----------------------------------------------------------------------------------------------------

write_page() {
    local where='a CPU'
    [ ${#gpus[@]} -eq 0 ] || where=$(gpu_name)
    {
        echo "# Learning rates and sharpness"
        echo
        echo "\`${model[*]} ${batch[*]} ${training[*]}\`, $steps steps, on $where; version $(git describe --always --dirty 2>/dev/null || "$trainer" --version). Validation loss, mean ± standard deviation over the seeds ${seeds[*]}, and its difference from ${recipes[0]}."
        echo
        awk -v want=losses -f scripts/stability_tables.awk "$out/losses.txt"
        echo
        awk -v want=summary -f scripts/stability_tables.awk "$out/losses.txt" "$out/sharpness.txt"
        echo
        echo "Sensitivity: how far the loss lies above its best on average over the rates; a run that diverged counts as the loss at the start."
        [ "$directions" -eq 0 ] ||
            echo "Curvature: (L(+ε) − 2 L(0) + L(−ε)) / ε², ε = $(awk "BEGIN { print 2 / ($points - 1) }"), of the run at the best rate with seed ${seeds[0]}: mean ± standard deviation over $directions random directions, the same for all recipes but for the norm of each filter, which is that of its weights."
    } >"$out/stability.md"
    if python3 -c 'import matplotlib' 2>/dev/null; then
        run "$out/plot.log" python3 scripts/plot_stability.py "$out" || { failure "the pictures" $? "$out/plot.log" || return; }
        for picture in stability sharpness; do
            [ ! -e "$out/$picture.svg" ] || printf '\n![%s](%s.svg)\n' "$picture" "$picture" >>"$out/stability.md"
        done
    else
        printf '\nNo pictures: Python has no matplotlib here; where it has, scripts/plot_stability.py %s draws them.\n' "$out" >>"$out/stability.md"
    fi
}

# Other recipes, rates and seeds belong to the same study.
[ -n "$dry_run" ] || check_settings "$out" "MODEL=${model[*]}
BATCH=${batch[*]}
TRAINING=${training[*]}
STEPS=$steps
TRAIN=$train_files
VAL=$val_files"
begin_work
[ ${#globs[@]} -eq 2 ] || prepare_text

runs=()
for seed in "${seeds[@]}"; do
    for rate in "${rates[@]}"; do
        for recipe in "${recipes[@]}"; do runs+=("$recipe $rate $seed"); done
    done
done
work_through train "${runs[@]}"

lines=()
if [ -n "$dry_run" ]; then
    for recipe in "${recipes[@]}"; do lines+=("$recipe BEST 1"); done
else
    collect_losses
    while read -r recipe rate; do
        for ((direction = 0; direction <= directions; direction++)); do lines+=("$recipe $rate $direction"); done
    done < <(best_rates)
fi
if [ "$directions" -gt 0 ] && [ ${#lines[@]} -gt 0 ]; then work_through look_along "${lines[@]}"; fi
[ -z "$dry_run" ] || exit 0
collect_sharpness
write_page || failed=yes
echo "written: $out/stability.md"
[ -z "$failed" ]
