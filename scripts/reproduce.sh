#!/usr/bin/env bash
# The paper's tables beside this program's figures, measured on this machine's GPU; what it cannot run comes from
# --plan and is marked. Writes OUT/reproduce.md, pictures beside it, and the logs of everything that ran.
#
#   scripts/reproduce.sh [--dry-run] [--out runs/reproduce] [PIECE...]
#
#   table2         quantisation error of the optimizer's states, and a picture of their dynamic ranges
#   quant-error    the same, without the picture on the page
#   table6         one layer, forward and backward: time and memory
#   table7         memory of Llama 7B to 30B on 1 to 8 GPUs of 80 GB; speed and memory of OLMo-7B, GPT-2 124M and 1558M
#   figure4        the maximum of a tensor with and without Group Scaling
#   all            all of it (default). expected: 28 minutes on an H200, 12 with QUICK=1; without a GPU: 1.
#                  On several GPUs what is measured runs at the same time, one thing on each: 8 minutes on four
#
# Losses are compared by scripts/fidelity.sh: several seeds, and batches of several sizes.
#
# Settings come from the environment:
#   TRAIN=GLOB             GPT-2 tokens of real text; without it, or without a GPU, a small model of bytes is trained
#   TOKENS=100000000       how much of it the model of `table2` sees
#   QUICK=1                fewer repetitions; the largest micro-batches are planned, not measured (without it, those for
#                          more memory than a GPU here has)
#   TEXT=FOLDER            what the model of bytes reads (default: this machine's headers); STEPS=400 how long
#   SPEED_STEPS=20         steps of each speed that is measured (10 with QUICK=1); the second half counts
#   BIN=. BUILD=build      where the programs are
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-.} build=${BUILD:-build} quick=${QUICK:-} train=${TRAIN:-} tokens=${TOKENS:-100000000}
# shellcheck disable=SC2016 # the quotes are for whoever copies the line
command_line="${QUICK:+QUICK=$QUICK }${STEPS:+STEPS=$STEPS }${TEXT:+TEXT=$TEXT }${SPEED_STEPS:+SPEED_STEPS=$SPEED_STEPS }${TRAIN:+TRAIN='$TRAIN' }${TOKENS:+TOKENS=$TOKENS }scripts/reproduce.sh${*:+ $*}"
out=runs/reproduce dry_run=''
pieces=()

stop() { echo "error: $1" >&2; exit 1; }

while [ $# -gt 0 ]; do
    case $1 in
    --dry-run) dry_run=yes ;;
    --out) [ $# -gt 1 ] || stop "--out needs a folder"; out=$2; shift ;;
    --out=*) out=${1#--out=} ;;
    -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit ;;
    all) pieces+=(table2 table6 table7 figure4 losses) ;;
    table2 | table6 | table7 | figure4 | quant-error) pieces+=("$1") ;;
    loss | parts) stop "$1: scripts/fidelity.sh compares losses" ;;
    *) stop "$1: not one of table2, table6, table7, figure4, quant-error, all" ;;
    esac
    shift
done
[ ${#pieces[@]} -gt 0 ] || pieces=(table2 table6 table7 figure4 losses)
for setting in "TOKENS $tokens" "STEPS ${STEPS:-400}" "SPEED_STEPS ${SPEED_STEPS:-20}"; do
    case ${setting#* } in '' | 0* | *[!0-9]*) stop "${setting% *}: a number from 1 on, no zero in front, not ${setting#* }" ;; esac
done

# --- the machine and the build ------------------------------------------------------------------------------------

. scripts/gpu.sh
gpu='' gpu_bytes=0 real_text='' speed_steps=${SPEED_STEPS:-20}
[ -z "$quick" ] || speed_steps=${SPEED_STEPS:-10}
if has_fp8_gpu; then
    gpu=yes
    # of the one that has the least; 0: not known
    gpu_bytes=$(nvidia-smi ${CUDA_VISIBLE_DEVICES:+-i "$CUDA_VISIBLE_DEVICES"} --query-gpu=memory.total --format=csv,noheader,nounits |
        awk 'NR == 1 || $1 + 0 < least { least = $1 + 0 } END { printf "%.0f", least * 1048576 }' || true)
fi
[ -z "$gpu" ] || [ -z "$train" ] || real_text=yes
[ -n "$real_text" ] || [ -z "$train" ] || echo "note: TRAIN is used on a GPU for FP8; a model of bytes is trained instead" >&2
planner=$bin/train_gpt2_fp8_cpu trainer=$planner
[ -z "$gpu" ] || trainer=$bin/train_gpt2_fp8

needs() { # PIECE: the programs that it runs
    local trains=$trainer
    [ -n "$real_text" ] || trains="$trainer $build/prepare_bytes"
    case $1 in
    table2 | quant-error) echo "$trains $build/quant_error" ;;
    table6) [ -z "$gpu" ] && echo "$planner" || echo "$build/bench_layer_gpu" ;;
    table7) echo "$planner $trainer" ;;
    figure4) [ -z "$gpu" ] || echo "$build/bench_group_scaling_gpu" ;;
    esac
}

check_build() {
    local piece program
    for piece in "${pieces[@]}"; do
        for program in $(needs "$piece"); do
            [ -x "$program" ] || stop "$piece: $program is not built: make ${program#./}"
        done
    done
}

# run LOG COMMAND...: runs it, what it says into OUT/LOG, unless a job has done so before; in a dry run, prints it. A
# failure is told on the page, and the other pieces go on.
failed='' printed=' '
run() {
    local log=$1 status=0
    shift
    if [ -n "$dry_run" ]; then
        case $printed in *" $log "*) return ;; esac
        printed="$printed$log "
        printf '%q ' "$@"
        echo
        return
    fi
    if [ ! -e "$out/.$log.status" ]; then
        echo "running $*" >&2
        "$@" >"$out/$log" 2>&1 </dev/null || status=$?
        echo $status >"$out/.$log.status"
    fi
    status=$(<"$out/.$log.status")
    [ "$status" != 0 ] || return 0
    local reason
    failed=yes
    reason=$(grep -m 1 -o '\berror: .*' "$out/$log" || tail -n 1 "$out/$log") # measure.sh has it behind the model
    echo "failed: $reason (see $out/$log)" >&2
    say "**Failed**, status $status: \`$*\`: $reason"
    return 1
}

say() { printf '%s\n\n' "$@" >>"$page"; }

# table NAME RESULTS [VARIABLE...]: this program's figures beside the paper's
table() {
    awk -v table="$1" "${@:3}" -f scripts/reproduce_tables.awk scripts/paper_figures.txt "$2" >>"$page"
    echo >>"$page"
}

# field NAME PLAN: a number of --plan=json, 0 where it has none
field() { if [[ $2 =~ \"$1\":\ ([0-9]+) ]]; then echo "${BASH_REMATCH[1]}"; else echo 0; fi; }

gigabytes() { awk -v bytes="$(field "$1" "$2")" 'BEGIN { print bytes / 1e9 }'; } # NAME PLAN

plan() { # FLAGS...: the plan, empty where nothing fits
    if [ -n "$dry_run" ]; then echo "$planner --plan=json $*" >&3; else "$planner" --plan=json "$@" 2>/dev/null || true; fi
}

# The exact master weights take 4 bytes per parameter, weight included, in BF16 and in COAT, so that they are no part of
# the comparison. fp8-linear stands for TransformerEngine and is measured with FP32 masters, as measure.sh does.
recipe_flags() { # RECIPE[+head]
    echo "--recipe ${1%%+*} --master split16$([[ $1 != *+head ]] || echo " --head fp8")"
}

# --- head of the page ---------------------------------------------------------------------------------------------

write_head() {
    local cpu
    cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
    say "# COAT's tables, reproduced"
    {
        echo "| | |"
        echo "| --- | --- |"
        echo "| date | $(date -u +%Y-%m-%dT%H:%MZ) |"
        if [ -n "$gpu" ]; then
            nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader |
                awk -F', ' '{ count[$0]++ } END { for (g in count) { split(g, f, ", "); print "| GPU | " count[g] " x " f[1] ", " f[2] ", driver " f[3] " |" } }'
            echo "| libraries | CUDA $(cuda_version "$trainer"), cuBLAS $(library_version "$trainer" libcublasLt cublas_api.h CUBLAS_VER), cuDNN $(library_version "$trainer" libcudnn cudnn_version.h CUDNN) |"
        else
            echo "| GPU | none for FP8: **planned, not measured** wherever it says so |"
        fi
        echo "| CPU | ${cpu:-unknown}, $(nproc --all) cores |"
        echo "| version | $(git describe --always --dirty 2>/dev/null || "$planner" --version) |"
        echo "| command | \`$command_line\` |"
        echo
    } >>"$page"
    say "Each cell is the paper's figure (H100 80 GB, Llama and OLMo) → this program's here (in brackets: the second divided by the first). GB = 10⁹ bytes. \"planned\": the memory plan of \`--plan\`, to which CUDA's context adds about 0.6 GB."
}

. scripts/reproduce_states.sh

# --- table 6 --------------------------------------------------------------------------------------------------------

# What one more layer saves: that needs no GPU.
planned_layer() { # HIDDEN LENGTH NAME FLAGS...
    local shape=(--heads $(($1 / 128)) --channels "$1" --ffn $(($1 * 43 / 16)) --seq-len "$2" --micro-batch 4 "${@:4}") one two
    one=$(plan --model olmo:d1 "${shape[@]}") two=$(plan --model olmo:d2 "${shape[@]}")
    echo "$1 $2 $3 - $((($(field saved "$two") - $(field saved "$one")) / 1000000))"
}

planned_layers() {
    local hidden length
    for hidden in 2048 4096; do
        for length in 2048 4096; do
            planned_layer $hidden $length bf16 --recipe bf16
            planned_layer $hidden $length bf16_--recompute_2 --recipe bf16 --recompute 2
            planned_layer $hidden $length fp8-linear --recipe fp8-linear
            planned_layer $hidden $length coat --recipe coat
        done
    done
}

# The rows of a benchmark's Markdown table: hidden, length, recipe, ms, MB.
measured_layers() {
    awk -F'|' '/^\| [0-9]+, [0-9]+ \|/ {
        split($2, at, ",")
        gsub(/^ | $/, "", $3)
        gsub(/ /, "_", $3)
        print at[1] + 0, at[2] + 0, $3, $4 + 0, $6 + 0
    }' "$out/bench_layer.log"
}

measure_layers() { run bench_layer.log "$build/bench_layer_gpu" ${quick:+--quick}; }

piece_table6() {
    say "## One layer (table 6)" "OLMo's layer, as in the paper's benchmark: batch 4, heads of 128, a feed-forward half of 2.69 times the width. The paper's times fit a batch of 4 and its MB one of 8, so that half of them is here before anything is saved. Its BF16 keeps 45 bytes per token and channel where this one keeps 32: a part of its 1.65 is its baseline's. \`fp8-linear\` stands beside TransformerEngine."
    if [ -n "$gpu" ]; then
        measure_layers || return
        [ -n "$dry_run" ] || measured_layers >"$work/table6.txt"
    else
        planned_layers >"$work/table6.txt"
    fi
    [ -n "$dry_run" ] || table table6 "$work/table6.txt"
}

# --- table 7 --------------------------------------------------------------------------------------------------------

# Models of the paper's sizes on GPUs of 80 GB; what GPUs can share, they share (ZeRO 3).
planned_models() {
    local name model gpus batch recipe flags planned largest
    while read -r name model; do
        for gpus in 1 2 4 8; do
            batch=1
            [ "$name" != 7B ] || [ $gpus -eq 1 ] || batch=2 # as in the paper
            for recipe in bf16 fp8-linear coat; do
                # shellcheck disable=SC2206,SC2207 # the flags are words
                flags=(--model "$model" --seq-len 2048 --gpus $gpus --zero $((gpus > 1 ? 3 : 0)) $(recipe_flags $recipe))
                planned=$(plan "${flags[@]}" --micro-batch $batch)
                largest=$(plan "${flags[@]}" --memory-limit 80GB)
                echo "$name $gpus $batch $recipe $(field moments "$planned") $(field saved "$planned") $(field total_bytes "$planned") $(field largest_micro_batch "$largest")" |
                    awk '{ print $1, $2, $3, $4, $5 / 1e9, $6 / 1e9, $7 / 1e9, $8 ? $8 : "OOM" }'
            done
        done
    done <<<"7B llama2-7b
13B llama2-13b
30B llama-30b"
}

# Model, name, the batch that all recipes can take, length; what takes longest first. The arithmetic of the paper's table 7
# is OLMo-7B's.
speed_models=("olmo-7b OLMo-7B 1 2048" "gpt2-xl 1558M 16 1024" "gpt2 124M 64 1024")

# Speeds are measured where there is text and memory, without QUICK also at the largest batches that every GPU here has
# memory for.
speed_is_measured() { # SETTING BYTES
    [ -n "$real_text" ] || return
    [ -n "$dry_run" ] || [ "$gpu_bytes" -eq 0 ] || [ "$gpu_bytes" -ge "$2" ] || return
    [ "$1" = equal_batch ] || { [ -z "$quick" ] && gpus_hold "${1#largest_in_}"; }
}
gpus_hold() { [ "$gpu_bytes" -eq 0 ] || [ "$gpu_bytes" -ge "${1%GB}000000000" ]; } # MEMORY, as 80GB

measure_speed() { # MODEL RECIPE MICRO_BATCH LENGTH
    run "speed-$1-$2-$3.log" env MODELS="$1" MICRO_BATCH="$3" LENGTH="$4" STEPS="$speed_steps" PROGRAM="$trainer" OUT="$out/speed-$1-$2-$3" \
        scripts/measure.sh "$train" "$2" >&3
}

speed_plan() { # MODEL RECIPE LENGTH FLAGS...
    # shellcheck disable=SC2046 # the flags are words
    plan --model "$1" --seq-len "$3" $(recipe_flags "$2") $([ "$2" != fp8-linear ] || echo --master fp32) "${@:4}" # as measure.sh
}

# Lines of SETTING RECIPE MICRO_BATCH BYTES: the batch that all recipes can take, and the largest of each; 0: none.
speed_settings() { # MODEL BATCH LENGTH
    local setting recipe batch bytes
    for setting in equal_batch largest_in_80GB largest_in_141GB; do
        for recipe in bf16 fp8-linear coat coat+head; do
            batch=$2
            [ $setting = equal_batch ] || batch=$(field largest_micro_batch "$(speed_plan "$1" $recipe "$3" --memory-limit "${setting#largest_in_}")")
            bytes=0
            if [ -n "$dry_run" ]; then
                [ $setting = equal_batch ] || batch=LARGEST
            elif [ "$batch" != 0 ]; then
                bytes=$(field total_bytes "$(speed_plan "$1" $recipe "$3" --micro-batch "$batch")")
            fi
            echo "$setting $recipe $batch $bytes"
        done
    done
}

# speeds MODEL NAME BATCH LENGTH: the rows of the table: moments and saved activations in GB, tokens/s, the plan's and the driver's GB
speeds() {
    local setting recipe batch bytes figures planned settings how
    settings=$(speed_settings "$1" "$3" "$4")
    while read -r setting recipe batch bytes; do
        figures='' how=planned
        if [ "$batch" = 0 ]; then
            echo "$2 $setting $recipe 0 - - - OOM - $how"
            continue
        fi
        if speed_is_measured "$setting" "$bytes"; then
            measure_speed "$1" "$recipe" "$batch" "$4" && [ -z "$dry_run" ] &&
                figures=$(tail -n 1 "$out/speed-$1-$recipe-$batch.log" | awk '$3 + 0 > 0 && NF == 6 { print $3, $5, $6 }')
            if [ -n "$figures$dry_run" ]; then how=measured; else how=failed failed=yes; fi
        fi
        planned=$(speed_plan "$1" "$recipe" "$4" --micro-batch "$batch")
        [ -n "$figures" ] || figures="- $(gigabytes total_bytes "$planned") -"
        echo "$2 $setting $recipe $batch $(gigabytes moments "$planned") $(gigabytes saved "$planned") $figures $how"
    done <<<"$settings"
}

piece_table7() {
    local model_of
    say "## Memory of large models on GPUs of 80 GB (table 7)" "All rows: **planned, not measured**. Llama-2-7B, Llama-2-13B and Llama-30B, length 2048; on several GPUs they share weights, gradients and states (ZeRO 3). Optimizer: the two moments."
    planned_models >"$work/table7.txt"
    if [ -z "$dry_run" ]; then
        table table7 "$work/table7.txt" -v limit=80
        awk -v limit=80 -f scripts/reproduce_bars.awk scripts/paper_figures.txt "$work/table7.txt" >"$out/memory.svg"
        say "![Peak memory per GPU](memory.svg)"
    fi
    say "## Speed and memory of one GPU" "OLMo-7B at length 2048, GPT-2 at 1024, on real text, means after warm-up; the paper's ratios are of Llama-2-7B: COAT's headline, and TransformerEngine on 4 GPUs beside \`fp8-linear\`. \`coat+head\`: the head's products in FP8 too. \`fp8-linear\` has FP32 masters, 2 bytes per parameter more than the others. Optimizer (the two moments) and activations (saved) are the plan's."
    [ -z "$real_text" ] && [ -n "$gpu" ] && say "No speeds: name token files by TRAIN."
    for model_of in "${speed_models[@]}"; do
        # shellcheck disable=SC2086 # name, size and batch are words
        speeds $model_of
    done >"$work/speed.txt"
    [ -n "$dry_run" ] || table speed "$work/speed.txt"
}

# --- figure 4 -------------------------------------------------------------------------------------------------------

measure_maxima() { run bench_group_scaling.log "$build/bench_group_scaling_gpu" ${quick:+--quick}; }

piece_figure4() {
    say "## The maximum of a tensor (figure 4)" "Plain: one more pass over the tensor. Group Scaling: a reduction of the maxima of groups of 128 that the kernel before has left; this program's kernels leave those of rows."
    if [ -n "$gpu" ]; then
        measure_maxima || return
        [ -n "$dry_run" ] || awk -F'|' '/^\| [0-9]+ x [0-9]+ \|/ { split($2, at, "x"); print at[1] + 0, at[2] + 0, $3 + 0, $5 + 0, $6 + 0 }' \
            "$out/bench_group_scaling.log" >"$work/figure4.txt"
    else
        [ -z "$dry_run" ] || echo "# figure4 needs a GPU for FP8: without one nothing runs, and the page has the paper's figures alone"
        awk '$1 == "figure4" { print $2, $3, "- - -" }' scripts/paper_figures.txt >"$work/figure4.txt"
    fi
    [ -n "$dry_run" ] || table figure4 "$work/figure4.txt"
}

# What the paper says of losses, and what compares them here.
piece_losses() {
    [ -z "$dry_run" ] || return 0
    say "## Loss"
    table loss /dev/null
}

# --- all of it ------------------------------------------------------------------------------------------------------

exec 3>&1
if [ -n "$dry_run" ]; then
    page=/dev/null work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
else
    check_build
    mkdir -p "$out"
    page=$out/reproduce.md work=$out
    : >"$page"
fi
write_head

# What the pieces measure, the longest first: each a job that any GPU can do, whose figures the pieces find done.
list_jobs() {
    local piece=" ${pieces[*]} " model_of of name batch length setting recipe bytes
    case $piece in
    *" table2 "* | *" quant-error "*) echo measure_error ;; # which trains BF16
    esac
    [[ $piece != *" table7 "* ]] || for model_of in "${speed_models[@]}"; do
        read -r of name batch length <<<"$model_of"
        while read -r setting recipe batch bytes; do
            [ "$batch" = 0 ] || ! speed_is_measured "$setting" "$bytes" || echo "measure_speed $of $recipe $batch $length"
        done < <(speed_settings "$of" "$batch" "$length")
    done
    [[ $piece != *" table6 "* ]] || echo measure_layers
    [[ $piece != *" figure4 "* ]] || echo measure_maxima
}

# do_jobs GPU: those that no other GPU has taken
do_jobs() {
    local job words
    export CUDA_VISIBLE_DEVICES=$1
    page=/dev/null # what fails is told by its piece
    for job in "${!jobs[@]}"; do
        mkdir "$out/.job-$job" 2>/dev/null || continue
        read -ra words <<<"${jobs[job]}"
        "${words[@]}" 2>&1 | grep -v '^failed' >&2 || true
    done
}

gpus=() jobs=()
[ -z "$gpu" ] || mapfile -t gpus < <(list_gpus)
if [ -z "$dry_run" ]; then rm -rf "$out"/.*.status "$out"/.job-*; fi
if [ ${#gpus[@]} -gt 1 ] && [ -z "$dry_run" ]; then
    case " ${pieces[*]} " in *" table2 "* | *" quant-error "*) choose_model || true ;; esac
    mapfile -t jobs < <(list_jobs | awk '!seen[$0]++')
fi
if [ ${#jobs[@]} -gt 1 ]; then
    say "What was measured ran on ${#gpus[@]} GPUs at the same time, one thing on each."
    workers=()
    set -m # a process group for each
    for id in "${gpus[@]}"; do
        do_jobs "$id" &
        workers+=("-$!")
    done
    set +m
    trap 'kill -- "${workers[@]}" 2>/dev/null; exit 143' TERM INT HUP
    wait
    trap - TERM INT HUP
fi
for piece in "${pieces[@]}"; do "piece_$piece" || failed=yes; done
if [ -z "$dry_run" ]; then rm -rf "$out"/.*.status "$out"/.job-*; fi
[ -n "$dry_run" ] || echo "written: $page"
[ -z "$failed" ]
