#!/usr/bin/env bash
# The paper's tables beside this program's figures, of the paper's models,
# measured on this machine's GPUs; what it cannot run comes from --plan and is
# marked. Writes OUT/reproduce.md, pictures beside it, and the logs of everything
# that ran.
#
#   scripts/reproduce.sh [--dry-run] [--out runs/reproduce] [PIECE...]
#
#   table1         quantisation error of the optimizer's states of OLMo-1B, at
#                  several points of training
#   table2         what a layer saves for backward, by what reads it; needs no GPU
#   losses         the paper's, kept ones of OLMo-1B by eighths, and what each part
#                  costs; scripts/fidelity.sh measures them
#   table6         one layer, forward and backward: time and memory
#   table7         speed and memory of Llama-2-7B, -13B and -30B, and of OLMo-7B,
#                  on 1 to 8 GPUs of 80 GB
#   figure4        the maximum of a tensor with and without Group Scaling
#   gpt2           speed and memory of GPT-2 124M and 1558M on one GPU
#   peers          other programs on one card, kept figures of dev/peers/peers.sh
#   differences    what differs from the published method, why, and what it is
#                  worth
#   all            all of it (default). With QUICK=1 it took 6 minutes on one H100,
#                  7 on two; without, expected, 50 on one (table1 18, gpt2 24).
#                  Without a GPU: 1
#
# The page has the pieces that were asked for, each once, and replaces the one
# before; another --out keeps that. On several GPUs what needs one runs at the
# same time, one thing on each; what needs several follows, a group of so many
# each.
#
# Settings come from the environment:
#   TRAIN=GLOB             GPT-2 tokens of real text; without it, or without a
#                          GPU, a small model of bytes is trained. For Llama's
#                          vocabulary of 32,000 those that it lacks are left out
#   TOKENS=33554432        how much of it OLMo-1B sees in `table1`, twice (2097152
#                          with QUICK=1); each takes 30 GB of disk until it ends,
#                          well or not
#   TEXTS="NAME=GLOB ..."  further texts for the command of `losses`:
#                          scripts/fidelity.sh --help
#   QUICK=1                fewer repetitions; the largest micro-batches are
#                          planned, not measured
#   TEXT=FOLDER            what the model of bytes reads (default: this machine's
#                          headers); STEPS=400 how long
#   SPEED_STEPS=20         steps of each speed that is measured (6 with QUICK=1);
#                          the second half counts
#   MPIRUN="mpirun --bind-to none"   starts what needs several GPUs
#   BIN=. BUILD=build      where the programs are
#   VERSION=NAME           of the programs, for the page, where the checkout has
#                          another
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-.} build=${BUILD:-build} quick=${QUICK:-} train=${TRAIN:-} texts=${TEXTS:-}
texts=${texts:+TEXTS=\'${texts//$'\n'/ }\' } # for whoever copies the line
tokens=${TOKENS:-$([ -n "$quick" ] && echo 2097152 || echo 33554432)}
# shellcheck disable=SC2016 # the quotes are for whoever copies the line
command_line="${QUICK:+QUICK=$QUICK }${STEPS:+STEPS=$STEPS }${TEXT:+TEXT=$TEXT }${SPEED_STEPS:+SPEED_STEPS=$SPEED_STEPS }${TRAIN:+TRAIN='$TRAIN' }${TOKENS:+TOKENS=$TOKENS }${texts}scripts/reproduce.sh${*:+ $*}"
out=runs/reproduce dry_run=''
all=(table1 table2 losses table6 table7 figure4 gpt2 peers differences) pieces=()

stop() { echo "error: $1" >&2; exit 1; }

while [ $# -gt 0 ]; do
    case $1 in
    --dry-run) dry_run=yes ;;
    --out) [ $# -gt 1 ] || stop "--out needs a folder"; out=$2; shift ;;
    --out=*) out=${1#--out=} ;;
    -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit ;;
    all) pieces+=("${all[@]}") ;;
    table1 | table2 | losses | table6 | table7 | figure4 | gpt2 | peers | differences) pieces+=("$1") ;;
    -*) stop "$1: not one of --dry-run, --out, --help" ;;
    *) stop "$1: not one of ${all[*]}, all" ;;
    esac
    shift
done
[ ${#pieces[@]} -gt 0 ] || pieces=("${all[@]}")
mapfile -t pieces < <(printf '%s\n' "${pieces[@]}" | awk '!listed[$0]++')
for setting in "TOKENS $tokens" "STEPS ${STEPS:-400}" "SPEED_STEPS ${SPEED_STEPS:-20}"; do
    case ${setting#* } in '' | 0* | *[!0-9]*) stop "${setting% *}: a number from 1 on, no zero in front, not ${setting#* }" ;; esac
done

# --- the machine and the build ------------------------------------------------------------------------------------

. scripts/gpu.sh
gpu='' gpus=() gpu_bytes=0 real_text='' speed_steps=${SPEED_STEPS:-20}
[ -z "$quick" ] || speed_steps=${SPEED_STEPS:-6}
if has_fp8_gpu; then
    gpu=yes
    mapfile -t gpus < <(list_gpus)
    # of the one that has the least; 0: not known
    gpu_bytes=$(nvidia-smi ${CUDA_VISIBLE_DEVICES:+-i "$CUDA_VISIBLE_DEVICES"} --query-gpu=memory.total --format=csv,noheader,nounits |
        awk 'NR == 1 || $1 + 0 < least { least = $1 + 0 } END { printf "%.0f", least * 1048576 }' || true)
fi
[ -z "$gpu" ] || [ -z "$train" ] || real_text=yes
[ -n "$real_text" ] || [ -z "$train" ] || echo "note: TRAIN is used on a GPU for FP8; a model of bytes is trained instead" >&2
planner=$bin/train_gpt2_fp8_cpu trainer=$planner
[ -z "$gpu" ] || trainer=$bin/train_gpt2_fp8

needs() { # PIECE: the programs that it runs
    local text="$build/prepare_bytes"
    [ -z "$real_text" ] || text=''
    case $1 in
    table1) echo "$trainer $text $build/quant_error" ;;
    table2) echo "$planner" ;;
    table6) [ -z "$gpu" ] && echo "$planner" || echo "$build/bench_layer_gpu" ;;
    table7) echo "$planner $trainer${real_text:+ $build/narrow_tokens}" ;;
    gpt2) echo "$planner $trainer" ;;
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
failed='' printed=' ' child='' # what runs: process groups, behind a minus
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
        printf '%d:%02d running %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*" >&2
        [ $BASHPID != $$ ] || set -m # a process group of its own, but within a worker's
        "$@" >"$out/$log" 2>&1 </dev/null &
        child=-$!
        set +m
        wait $! || status=$?
        child=''
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
recipe_flags() { echo "--recipe ${1//,/ --} --master split16"; } # RECIPE[,FLAG=VALUE...]

# --- head of the page ---------------------------------------------------------------------------------------------

write_head() {
    local cpu
    cpu=$(sed -n '/^model name[^:]*: /{s///p;q}' /proc/cpuinfo)
    say "# COAT's tables, reproduced"
    {
        echo "| | |"
        echo "| --- | --- |"
        echo "| date | $(date -u +%Y-%m-%dT%H:%MZ) |"
        if [ -n "$gpu" ]; then
            nvidia-smi ${CUDA_VISIBLE_DEVICES:+-i "$CUDA_VISIBLE_DEVICES"} --query-gpu=name,memory.total,driver_version --format=csv,noheader |
                awk -F', ' '{ count[$0]++ } END { for (g in count) { split(g, f, ", "); print "| GPU | " count[g] " x " f[1] ", " f[2] ", driver " f[3] " |" } }'
            echo "| libraries | CUDA $(cuda_version "$trainer"), cuBLAS $(library_version "$trainer" libcublasLt cublas_api.h CUBLAS_VER), cuDNN $(library_version "$trainer" libcudnn cudnn_version.h CUDNN) |"
        else
            echo "| GPU | none for FP8: **planned, not measured** wherever it says so |"
        fi
        echo "| CPU | ${cpu:-unknown}, $(nproc --all) cores |"
        echo "| version | ${VERSION:-$(git describe --always --dirty 2>/dev/null || "$planner" --version)} |"
        echo "| command | \`$command_line\` |"
        echo
    } >>"$page"
    say "A cell is the paper's figure (H100 80 GB) → this program's here (in brackets: the second divided by the first), or this program's alone. Tables are numbered as in the paper's first version; in its third those from 4 on have a number more. The paper's ratios are computed again from its figures; it printed them rounded down. GB = 10⁹ bytes; the paper's are probably 1000 MiB, with which its optimizer column is 2 and 8 bytes per parameter: 1.05 of these. What was not measured is marked: \"planned\" is the memory plan of \`--plan\`, to which CUDA's context adds about 0.6 GB, with NCCL 1.5, and \"–\" is no figure."
}

. scripts/reproduce_states.sh
. scripts/reproduce_layer.sh
. scripts/reproduce_models.sh
. scripts/reproduce_jobs.sh

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

# --- text -----------------------------------------------------------------------------------------------------------

# What the paper says of losses, and what compares them here.
piece_losses() {
    [ -z "$dry_run" ] || { echo "# losses runs nothing: the page has the paper's, those in scripts/results, and the commands of scripts/fidelity.sh that measured them" && return; }
    say "## Losses (table 3)" "The paper's are training losses of one run each, far from the end of its schedule: at 300 billion tokens OLMo-1B's rate is by its schedule still 98 % of the peak. Here:"
    say "\`\`\`
RECIPES=\"bf16 fp8-linear coat\" SEEDS=4 ${texts}scripts/fidelity.sh TRAIN_GLOB VAL_GLOB olmo-1b
TO=480 RECIPES=\"bf16 coat\" SEEDS=\"5 6 7\" ${texts}scripts/fidelity.sh TRAIN_GLOB VAL_GLOB olmo-1b
FROM=240 TO=640 RECIPES=\"bf16 coat b16:coat,bf16-blocks=16\" SEEDS=4 ${texts}scripts/fidelity.sh TRAIN_GLOB VAL_GLOB olmo-1b
FROM=240 TO=640 RECIPES=bf16 SEEDS=4@4 ${texts}scripts/fidelity.sh TRAIN_GLOB VAL_GLOB olmo-1b
\`\`\`"
    say "OLMo-1B from scratch, 105 million tokens (\`TO=480\` ends after 63 million, \`TO=344\` after 45), each recipe on the same tokens in the same order; its page has the difference by eighths of the run, and with \`TEXTS=\"NAME=GLOB ...\"\` perplexities on further texts, as the paper has them of WikiText, C4 and the Pile. The text is what TRAIN_GLOB and VAL_GLOB name, GPT-2 tokens from \`data/prepare.py\`. The rows \"here\" are of runs kept in scripts/results, on Python sources, which is not what the paper read: they compare with BF16 beside them and not with the paper. Each is one pair; the one of 45M tokens is of older kernels. From scratch seed 4 ends 1.73 % apart, seed 5 after 63M tokens at −0.04 %, so that one pair tells little; from a checkpoint of BF16 on COAT ends 0.15 % above, and BF16 with other micro-batches stays within 0.01 %: docs/loss.md, \"Is OLMo-1B's pair chance?\""
    find scripts/results -path '*/olmo-1b*' -name result -exec cat {} + |
        awk '{ print $1, $3, $2 != "bf16", $0 }' | LC_ALL=C sort -k1,1 -k2,2 -k3 | cut -d ' ' -f 4- >"$work/losses.txt" || return
    table loss "$work/losses.txt"
    say "Training losses by eighths of the steps, BF16's and in percent of them; all runs: scripts/results/fidelity-olmo-1b/fidelity.md. \`b16\` is COAT with \`--bf16-blocks 16\`, of all blocks; seed 4@4 is seed 4 in micro-batches of 4, in place of 8."
    table eighths "$work/losses.txt"
    say "What each part costs, in a small OLMo (4 layers of 128, bytes, 400 steps of 1,024 tokens, on a CPU; scripts/results/fidelity-olmo-small/fidelity.md):"
    table ablation scripts/results/fidelity-olmo-small/fidelity.md || return
    say "Further: pairs at 124M and 1558M, with their standard errors, in docs/loss.md; what each part of COAT costs, in docs/loss.md, \"Which part costs what?\"; a fine-tuning pair of Llama-2-7B (+0.10 % at the end, no eighth more than 0.12 %), in docs/finetuning.md. No counterpart have the paper's accuracies (COPA, ARC-E, SciQ and HellaSwag: after so few tokens models guess) and its fine-tuning on mathematics and of VILA, whose data are not at hand. Perplexities of these models of Python on other texts scatter by 9 % (docs/loss.md). Its table 8, formats with DE8, is among the pairs of table 1 above."
}

copied() { # PIECE: a text that is kept
    if [ -n "$dry_run" ]; then echo "# $1 runs nothing: scripts/reproduce_$1.md is copied to the page"; else { cat "scripts/reproduce_$1.md" && echo; } >>"$page"; fi
}
piece_peers() { copied peers; }
piece_differences() { copied differences; }

# --- all of it ------------------------------------------------------------------------------------------------------

exec 3>&1
# shellcheck disable=SC2086 # words
trap 'kill -- $child 2>/dev/null || true; wait; drop_runs_of_states; exit 143' TERM INT HUP
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

if [ -z "$dry_run" ]; then rm -rf "$out"/.*.status "$out"/.job-*; fi
if [ ${#gpus[@]} -gt 1 ] && [ -z "$dry_run" ]; then use_all_gpus; fi
for piece in "${pieces[@]}"; do "piece_$piece" || failed=yes; done
if [ -z "$dry_run" ]; then rm -rf "$out"/.*.status "$out"/.job-*; fi
if [ -z "$dry_run" ]; then
    sed -i "0,/^| command | .*/s//&\n| took | $((SECONDS / 60)) min $((SECONDS % 60)) s |/" "$page"
    echo "written: $page"
fi
[ -z "$failed" ]
