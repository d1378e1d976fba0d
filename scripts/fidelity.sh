#!/usr/bin/env bash
# Whether a recipe learns as well as BF16. Trains every recipe with the same seeds
# and data, each run on one GPU, all GPUs of the machine at a time. Writes one
# page, OUT/fidelity.md, and a picture per setting: the final validation loss, its
# mean difference from BF16 with the standard error, and the difference by eighths
# of the run (mean training loss of each eighth of the steps), in which one seed
# shows a drift long before the end does.
#
#   scripts/fidelity.sh [--dry-run] [--out runs/fidelity] [--page-only]
#       [TRAIN_GLOB VAL_GLOB [SETTING...]]
#
# SETTING: see the table below; 262k where none is named. Without token files a
# small model of bytes is trained on this machine's headers, in the setting
# `bytes`. --page-only trains nothing and makes the page of what OUT holds.
#
# A finished run is not done again, one that was stopped goes on from its last
# checkpoint: start the same command again, or one with more seeds, recipes or
# settings. OUT can be copied to another machine and continued there; the page
# needs no more of a run than its `result`. A run that diverges (exit code 4) is a
# result. Any other failure is told, the others go on, and the script ends with 1.
# expected: 3 minutes for a run of 65k or 262k on an H200, 8 of 524k, 8 of 1558M,
# 18 (coat) to 24 (bf16) of olmo-1b on an H100; on two cores 1 minute for one of
# bytes.
#
# Settings come from the environment:
#   RECIPES="bf16 coat"     the first one is the baseline; a recipe may have flags
#                           behind it: coat,scaling=tensor,head=fp8, and a name
#                           for the page before it:
#                           tensor:coat,scaling=tensor,head=fp8. They hold where
#                           the setting says otherwise: slow:bf16,lr=2.9e-4
#   SEEDS="1 2 3"           1@16 is seed 1 with micro-batches of 16 sequences, and
#                           the same tokens per step. How far runs of the baseline
#                           that differ in this alone lie apart is on the page: no
#                           smaller difference counts
#   FROM=STEP               the baseline is trained once per seed to that step of
#                           its schedule, and all recipes go on from this
#                           checkpoint: the chaos of the first steps is no part of
#                           a difference then. With 262k and 150 runs of BF16 end
#                           within 0.06 % of each other, so that one pair tells
#                           0.05 to 0.2 %
#   TO=STEP                 runs end at that step of their schedule: a drift shows
#                           within a hundred steps behind FROM, in a quarter of
#                           the time, so that many recipes can be told apart
#   KEEP_BRANCH_POINTS=1    keeps these checkpoints for recipes and seeds to come
#                           (124M: 1.7 GB each)
#   EVALUATE="bf16 coat"    the last checkpoint of every run that ends is
#                           evaluated in these recipes too: what of a difference
#                           is in the weights, and what is rounding of the forward
#                           pass while evaluating
#   TEXTS="NAME=GLOB ..."   it is evaluated on these token files too, in the run's
#                           own recipe: losses and perplexities on further texts.
#                           A run that has ended is not evaluated for what is
#                           named later, here or by EVALUATE: its checkpoint is
#                           gone. The script tells which, and their place on the
#                           page is empty
#   LIMIT=0.2               %: a recipe whose mean ends so near the baseline's is
#                           within the page's limit;
#   EIGHTH_LIMIT=0.4        the same of the means of the eighths
#   STEPS=N                 instead of the setting's
#   MODEL="--layers 6 ..."  instead of the setting's flags: of the model;
#                           BATCH="--seq-len N --micro-batch N ..." of the batch;
#                           TRAINING="--schedule ..." of the optimizer and its
#                           rate
#   SAVES=4                 checkpoints per run, for one that is stopped; they are
#                           removed when it has ended
#   JOBS=N                  runs at the same time (default: one per GPU; 1 on a
#                           CPU)
#   TEXT=FOLDER             what the model of bytes reads
#   BIN=. BUILD=build       where the programs are
#   VERSION=NAME            of the programs, for the page, where the checkout has
#                           no history (default: git describe)
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-.} build=${BUILD:-build}
out=runs/fidelity dry_run='' page_only='' words=() arguments=("$@")

. scripts/work.sh
. scripts/fidelity_branch.sh
. scripts/fidelity_evaluate.sh
. scripts/fidelity_page.sh

# SETTING MODEL TOKENS_PER_STEP STEPS MICRO_BATCH RATE WARMUP LAST_RATE DESCRIPTION; the last rate is a share of the rate.
settings_table() {
    cat <<'TABLE'
65k     gpt2     65536  1526  64  6e-4  100  0.1  124M, 65,536 tokens per step, as docs/loss.md compares
262k    gpt2     262144  400  64  3e-4   80  0    124M, 262,144 tokens per step, calm: BF16's seeds scatter by 0.4 %
524k    gpt2     524288  600  64  3e-4  120  0    124M, 524,288 tokens per step
stress  gpt2     262144  400  64  6e-4   40  0    124M, 262,144 tokens per step, a high rate: single runs scatter by 1 %
1558M   gpt2-xl  131072  240  16  1e-4   48  0    1558M, 131,072 tokens per step
olmo-1b olmo-1b  131072  800  8   2e-4  160  0    OLMo-1B, 131,072 tokens per step in sequences of 2,048, 105 million tokens, OLMo's eps
bytes   bytes    1024    400   8  2e-3   40  0    a model of bytes with 4 layers of 128 channels, 1,024 tokens per step
TABLE
}
setting_names() { settings_table | awk '{ printf "%s%s", (NR > 1 ? ", " : ""), $1 }'; }

help() {
    sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
    echo "Settings: model, tokens per step, steps, micro-batch, rate, warm-up, last rate, description"
    settings_table
}

while [ $# -gt 0 ]; do
    case $1 in
    --dry-run) dry_run=yes ;;
    --page-only) page_only=yes ;;
    --out) [ $# -gt 1 ] || stop "--out needs a folder"; out=$2; shift ;;
    --out=*) out=${1#--out=} ;;
    -h | --help) help; exit ;;
    --*) stop "$1: not one of --dry-run, --out, --page-only, --help" ;;
    *) words+=("$1") ;;
    esac
    shift
done

# --- settings -----------------------------------------------------------------------------------------------------

value_of() { # FLAG WORDS...: the last value of a flag
    local flag=$1 value=''
    shift
    while [ $# -gt 0 ]; do
        [ "$1" != "$flag" ] || value=${2:-}
        shift
    done
    echo "$value"
}

# A setting's flags as words, and what is computed with.
load_setting() { # SETTING[-from-STEP][-to-STEP]: `from` is the first, else 0; `schedule` steps, of which `steps` are made
    local setting=${1%-to-*} row name rate warmup final
    from=0
    [[ $setting != *-from-* ]] || from=${setting##*-from-}
    setting=${setting%-from-*}
    row=$(settings_table | awk -v name="$setting" '$1 == name')
    [ -n "$row" ] || stop "$1: not one of the settings $(setting_names)"
    read -r _ name batch_tokens steps micro_batch rate warmup final about <<<"$row"
    length=1024 val_tokens=2097152 model_flags="--model $name" tokenizer='' eps=''
    [ "$setting" != olmo-1b ] || { length=2048 eps=' --eps 1e-5'; }
    [ "$setting" != bytes ] || { length=128 val_tokens=40960 model_flags="--layers 4 --heads 4 --channels 128" tokenizer=" --tokenizer bytes"; }
    read -r -a model <<<"${MODEL:-$model_flags}$tokenizer"
    read -r -a batch <<<"${BATCH:---seq-len $length --micro-batch $micro_batch --batch-tokens $batch_tokens}"
    read -r -a training <<<"${TRAINING:---lr $rate --schedule cosine --warmup $warmup --lr-final $final --beta2 0.95 --weight-decay 0.1$eps}"
    train_files=${words[0]:-} val_files=${words[1]:-} schedule=${STEPS:-$steps}
    [ "$setting" != bytes ] || { train_files=$out/text_train.bin val_files=$out/text_val.bin; }
    length=$(value_of --seq-len "${batch[@]}") micro_batch=$(value_of --micro-batch "${batch[@]}")
    check_numbers "STEPS $schedule" "--seq-len ${length:-missing}" "--micro-batch ${micro_batch:-missing}"
    steps=$schedule
    [[ $1 != *-to-* ]] || steps=${1##*-to-}
    [ "$steps" -le "$schedule" ] || stop "TO: $1 has $schedule steps"
    [ $((steps - from)) -ge 8 ] || stop "$([[ $1 == *-to-* ]] && echo TO || echo STEPS): at least 8$([ "$from" -eq 0 ] || echo " more than FROM"), one for each eighth of the run"
}

check_seeds() { # SETTING
    local seed cut
    load_setting "$1"
    for seed in "${seeds[@]}"; do
        [[ $seed =~ ^[0-9]+(@[1-9][0-9]*)?$ ]] || stop "SEEDS: $seed: a number, with @MICRO_BATCH behind it or nothing"
        cut=${seed#*@}
        [[ $seed != *@* || $((micro_batch % cut)) -eq 0 ]] || stop "SEEDS: $seed: the micro-batch has to divide $micro_batch, that of the setting $1"
    done
}

# [NAME:]RECIPE[,FLAG=VALUE...]: from here on it is known by its name.
declare -A named=()
known_as() { # WORD: `name`
    name=${1%%:*}
    [[ $1 != *:* ]] || named[$name]=${1#*:}
}
# NAME or RECIPE[,FLAG=VALUE...]; the masters take 4 bytes per parameter, weight included, in all of them.
recipe_flags() {
    local recipe=${named[$1]:-$1}
    echo "--recipe ${recipe%%,*} --master split16$([[ $recipe != *,* ]] || echo ",${recipe#*,}" | sed 's/,/ --/g')"
}

read -r -a recipe_words <<<"${RECIPES:-bf16 coat}"
read -r -a seeds <<<"${SEEDS:-1 2 3}"
read -r -a evaluation_words <<<"${EVALUATE:-}"
recipes=() evaluations=()
for word in "${recipe_words[@]}"; do known_as "$word" && recipes+=("$name"); done
for word in "${evaluation_words[@]}"; do known_as "$word" && evaluations+=("$name"); done
read_texts
baseline=${recipes[0]} saves=${SAVES:-4} FROM=${FROM:-} TO=${TO:-} limit=${LIMIT:-0.2} eighth_limit=${EIGHTH_LIMIT:-0.4}
for number in "LIMIT $limit" "EIGHTH_LIMIT $eighth_limit"; do
    [[ ${number#* } =~ ^[0-9]+(\.[0-9]+)?$ ]] || stop "${number% *}: a number of percent, not ${number#* }"
done
find_trainer

# What is asked for can be done; nothing has been written yet.
check_arguments() {
    local recipe setting
    settings=("${words[@]:2}")
    [ ${#words[@]} -ne 1 ] || stop "token files: name TRAIN_GLOB and VAL_GLOB, or neither"
    [ ${#words[@]} -eq 0 ] || check_token_files "${words[@]:0:2}"
    [ ${#words[@]} -ne 0 ] || settings=(bytes)
    [ ${#settings[@]} -ne 0 ] || settings=(262k)
    check_numbers "SAVES $saves" "JOBS $jobs"
    [[ $FROM =~ ^([1-9][0-9]*)?$ ]] || stop "FROM: a step from 1 on, not $FROM"
    [[ $TO =~ ^([1-9][0-9]*)?$ ]] || stop "TO: a step from 1 on, not $TO"
    [ -z "$FROM" ] || settings=("${settings[@]/%/-from-$FROM}")
    [ -z "$TO" ] || settings=("${settings[@]/%/-to-$TO}")
    for recipe in "${recipe_words[@]/#/RECIPES: }" "${evaluation_words[@]/#/EVALUATE: }"; do
        [[ ${recipe#*: } =~ ^([A-Za-z0-9_.+-]+:)?[A-Za-z0-9,=_.+-]+$ ]] || stop "$recipe: not RECIPE or RECIPE,FLAG=VALUE,... or NAME:RECIPE,..."
    done
    for setting in "${settings[@]}"; do
        check_seeds "$setting"
        check_texts "$setting"
        if [[ $setting =~ ^bytes(-|$) ]]; then check_built "$build/prepare_bytes"; else needs_gpu "$setting"; fi
    done
    check_built "$trainer"
    for setting in "${settings[@]}"; do check_recipes "$setting"; done
}
# By the trainer's plan; in a dry run without it by the CPU's, if that is there.
check_recipes() { # SETTING
    local planner=$trainer recipe flags said
    load_setting "$1"
    [ -x "$planner" ] || planner=$bin/train_gpt2_fp8_cpu
    [ -x "$planner" ] || return 0
    for recipe in "${recipes[@]/#/RECIPES: }" "${evaluations[@]/#/EVALUATE: }"; do
        read -r -a flags <<<"$(recipe_flags "${recipe#*: }")"
        said=$("$planner" --plan=json "${model[@]}" "${batch[@]}" "${training[@]}" "${flags[@]}" 2>&1 >/dev/null) ||
            stop "$recipe: $(sed -n 's/^error: //p' <<<"$said" | head -n 1)"
    done
}
needs_gpu() { # SETTING
    [ ${#gpus[@]} -eq 0 ] || return 0
    trainer=$bin/train_gpt2_fp8
    check_built "$trainer"
    [ -n "$dry_run" ] || stop "$1: needs a GPU for FP8, compute capability 8.9 or later; without token files a model of bytes is trained on the CPU"
}

bytes_of() { # GLOB
    compgen -G "$1" | while read -r file; do wc -c <"$file"; done | awk '{ bytes += $1 } END { printf "%.0f", bytes }' || true
}

# --- runs ---------------------------------------------------------------------------------------------------------

step_folder() { printf 'step-%08d' "$1"; } # STEP

val_loss() { # LOG
    sed -n "s/^{\"step\":$steps,\"val_loss\":\([^,}]*\).*/\1/p" "$1" 2>/dev/null | tail -n 1
}

# The command of a run, which goes on where its folder has a checkpoint: `command`.
set_command() { # RECIPE SEED[@MICRO_BATCH] FOLDER SAVE_EVERY [FLAGS...]
    local cut=$micro_batch flags
    read -r -a flags <<<"$(recipe_flags "$1")"
    flags=("${batch[@]}" "${training[@]}" "${flags[@]}") # a recipe may have a rate of its own
    [[ $2 != *@* ]] || { cut=${2#*@} && flags+=(--micro-batch "$cut"); }
    command=("$trainer" "${model[@]}" "${flags[@]}" --train "$train_files" --val "$val_files" --steps "$schedule" --seed "${2%@*}"
        --val-every $((steps < schedule ? steps : 0)) --val-batches "$(val_batches "$cut" "$val_files")" --sample-tokens 0 --health-every 0 --quiet --save-every "$4" "${@:5}" --out "$3" --resume)
}

# One run. Its folder's `result` is written when it is finished (scripts/fidelity_result.awk says what is in it).
train() { # SETTING RECIPE SEED[@MICRO_BATCH]
    local folder=$out/$1/$2/$3 status=0 command evaluated='' on_texts=()
    [ ! -s "$folder/result" ] || return 0
    [ -n "$dry_run" ] || mkdir -p "$folder"
    if ! is_trained "$folder"; then
        [ "$from" -eq 0 ] || [ -n "$dry_run" ] || go_on_from_branch_point "$@" || return
        [ -z "$stopped" ] || return 1
        [ -n "$dry_run" ] || echo "training $1: $2, seed $3" >&2
        if [ "$steps" -lt "$schedule" ]; then
            set_command "$2" "$3" "$folder" "$steps"
            run_until is_validated "$folder/log.jsonl" "$folder/output.txt" "${command[@]}" || status=$?
        else
            set_command "$2" "$3" "$folder" $((steps / (saves + 1) + 1)) --keep 1
            run "$folder/output.txt" "${command[@]}" || status=$?
        fi
    fi
    if [ $status -ne 4 ] && [ -z "$dry_run" ] && ! is_trained "$folder"; then
        failure "$1, $2, seed $3" $status "$folder/output.txt" || return
    fi
    [ $status -eq 4 ] || evaluate "$@" || return
    [ -z "$dry_run" ] || return 0
    awk -v run="$1 $2 $3" -v from="$from" -v steps="$steps" -v ended="$status" -v machine="$machine" -v version="$version$evaluated" \
        -f scripts/fidelity_result.awk "$folder/log.jsonl" >"$folder/result.part" || return
    [ ${#on_texts[@]} -eq 0 ] || printf '%s\n' "${on_texts[@]}" >>"$folder/result.part" || return
    mv "$folder/result.part" "$folder/result"
    rm -rf "$folder"/step-* "$folder"/events.*
}

# A run, or where the recipe is "-" the checkpoint that the runs of a seed go on from.
work_on_run() { # SETTING RECIPE SEED[@MICRO_BATCH]
    local status=0
    load_setting "$1"
    if [ "$2" = - ]; then
        if branch_point_is_needed "$1" "$3"; then make_branch_point "$1" "$3"; fi
        return
    fi
    train "$@" || status=$?
    [ "$from" -eq 0 ] || [ -n "$dry_run" ] || drop_branch_point "$1" "${3%@*}"
    return $status
}

# The baseline and a recipe of the same seed stand side by side, so that two GPUs have a pair.
list_runs() {
    local setting seed recipe
    for setting in "${settings[@]}"; do
        load_setting "$setting"
        for seed in "${seeds[@]}"; do
            for recipe in "${recipes[@]}"; do echo "$setting $recipe ${seed%@"$micro_batch"}"; done
        done
    done | awk '!listed[$0]++' | if [ -n "$FROM" ]; then with_branch_points; else cat; fi
}

check_setting() { # SETTING: that what OUT holds of it was trained in the same way
    load_setting "$1"
    check_settings "$out/$1" "MODEL=${model[*]}
BATCH=${batch[*]}
TRAINING=${training[*]}
STEPS=$schedule
TRAIN=${train_files##*/}, $(bytes_of "$train_files") bytes
VAL=${val_files##*/}, $(bytes_of "$val_files") bytes$([ "$from" -eq 0 ] || printf '\nFROM=%s, %s' "$from" "$baseline")"
}

# A name means the same recipe, or text, in all of OUT: OUT/recipes and OUT/texts have a line of each.
keep_names() {
    local name
    for name in "${!named[@]}"; do keep_name recipes "$name" "${named[$name]}"; done
    for name in "${texts[@]}"; do keep_name texts "$name" "${glob_of[$name]##*/}, $(bytes_of "${glob_of[$name]}") bytes"; done
}
keep_name() { # FILE NAME MEANING
    local there
    there=$(awk -v name="$2" '$1 == name { print substr($0, length(name) + 2) }' "$out/$1" 2>/dev/null || true)
    [ -n "$there" ] || echo "$2 $3" >>"$out/$1"
    [ "${there:-$3}" = "$3" ] || stop "$2: in $out it is $there; choose another name"
}

# --- the study ----------------------------------------------------------------------------------------------------

if [ -n "$page_only" ]; then
    [ -d "$out" ] || stop "$out: no such folder"
    work=$(mktemp -d "$out/.page-XXXXXX") # a study may be at work
    trap 'rm -rf "$work"' EXIT
    write_page
    exit
fi

check_arguments
machine=CPU version=${VERSION:-$(git describe --always --dirty 2>/dev/null || "$trainer" --version)}
version=${version// /-}
[ ${#gpus[@]} -eq 0 ] || machine=$(gpu_name | tr ' ' '_')
begin_work
case " ${settings[*]}" in *" bytes"*) prepare_text ;; esac
if [ -z "$dry_run" ]; then
    for setting in "${settings[@]}"; do check_setting "$setting"; done
    keep_names
    grep -qxF "$(command_line)" "$out/commands" 2>/dev/null || command_line >>"$out/commands"
fi
mapfile -t runs < <(list_runs)
tell_what_is_missing
work_through work_on_run "${runs[@]}"
[ -z "$dry_run" ] || exit 0
write_page
[ -z "$failed" ]
