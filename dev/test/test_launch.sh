#!/usr/bin/env bash
# Tests that all shell scripts are valid; that launch scripts print and run the right commands, which the program
# accepts; and that the figures of the docs about plans are those of their sources.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh
unset GPUS LAUNCHER RECIPE DATA TRAIN VAL OUT HELLASWAG TOKENIZER MICRO_BATCH RESTARTS PROGRAM
export OUT=$folder/run RESTART_PAUSE=0

# has NAME TEXT WORDS: checks that the text contains the words
has() { if [[ " $2 " == *" $3 "* ]]; then ok "$1"; else bad "$1" "no '$3' in: $2"; fi; }

# refused NAME WORDS COMMAND...: checks that the command fails and prints the words
refused() { if said=$("${@:3}" 2>&1); then bad "$1" "$said"; else has "$1" "$said" "$2"; fi; }

said=$(for script in scripts/*.sh scripts/*.sbatch dev/*/*.sh .ci/run; do bash -n "$script" 2>&1; done)
[ -z "$said" ]; check "all shell scripts are valid" $? "$said"

# A program and launchers that record how they were called.
printf '#!/bin/sh\necho "$0 $*" >>"%s"\nexit $(cat "%s" 2>/dev/null || echo 0)\n' "$folder/calls" "$folder/status" >"$folder/program"
printf '#!/bin/sh\necho "mpirun $*"\n' >"$folder/mpirun"
printf '#!/bin/sh\necho "srun $*"\n' >"$folder/srun"
printf '#!/bin/sh\nprintf "node7\\nnode8\\n"\n' >"$folder/scontrol"
chmod +x "$folder/program" "$folder/mpirun" "$folder/srun" "$folder/scontrol"
export PATH="$folder:$PATH"

# planned FLAGS...: prints the GB of the memory plan
planned() { "$program" --plan=json "$@" | sed -n 's/.*"total_bytes": \([0-9]*\).*/\1/p' | awk '{ printf "%.1f", $1 / 1e9 }'; }
# stated NAME PATTERN FILE PLAN: checks that the first text in FILE that matches PATTERN contains "PLAN GB"
stated() {
    local figure
    figure=$(grep -oE "$2" "$3" | head -n 1 | grep -oE '[0-9.]+ GB')
    [ -n "$figure" ] && [ "${figure% GB}" = "$4" ]; check "$1" $? "the file has '$figure', the plan has $4 GB"
}

for size in 124M:gpt2:64 350M:gpt2-medium:64 774M:gpt2-large:32 1558M:gpt2-xl:16; do
    IFS=: read -r size model batch <<<"$size"
    script=scripts/run_gpt2_$size.sh
    line=$("$script" --dry-run) || bad "$size: --dry-run succeeds"
    has "$size: the command has the model and --train" "$line" "--model $model --train"
    has "$size: the command has the recipe" "$line" "--recipe coat"
    has "$size: the command resumes from --out" "$line" "--resume --out $folder/run"
    [[ $line == ./train_gpt2_fp8\ * ]]; check "$size: one GPU needs no launcher" $? "$line"
    line=$(GPUS=8 "$script" --dry-run --lr 1e-3)
    [[ $line == "mpirun -np 8 --bind-to none ./train_gpt2_fp8 "*" --zero 1 "*" --lr 1e-3" ]]; check "$size: the command for several GPUs uses mpirun and ZeRO 1, and ends with the given flags" $? "$line"
    said=$(PROGRAM=$program "$script" --plan=json 2>&1)
    [[ $said == '{"parameters":'* ]]; check "$size: the program accepts the flags" $? "$said"
    stated "$size: the stated memory for eight GPUs is the plan's" '[0-9.]+ GB each with ZeRO 1 \(planned\)' "$script" "$(planned --model $model --recipe coat --micro-batch $batch --gpus 8 --zero 1)"
    case $size in 350M | 774M)
        stated "$size: the stated memory for one GPU is the plan's" '[0-9.]+ GB \(planned\)' "$script" "$(planned --model $model --recipe coat --micro-batch $batch)"
        stated "$size: the stated memory in BF16 is the plan's" 'BF16 [0-9.]+ GB \(planned\)' "$script" "$(planned --model $model --recipe bf16 --master split16 --micro-batch $batch)"
        ;;
    esac
done

for settings in olmo_1b:olmo-1b:8:2048:1 llama2_7b:llama2-7b:2:4096:1 llama3_8b:llama3-8b:1:8192:1; do
    IFS=: read -r name model batch length zero <<<"$settings"
    script=scripts/run_$name.sh shape=(--model "$model" --recipe coat --micro-batch "$batch" --seq-len "$length")
    line=$(GPUS=8 "$script" --dry-run)
    has "$name: the command has micro-batch, sequence length and batch" "$line" "--micro-batch $batch --seq-len $length --batch-tokens 4194304"
    [[ $line == "mpirun -np 8 --bind-to none ./train_gpt2_fp8 --model $model --train "*" --zero $zero "* ]]; check "$name: the command for several GPUs uses mpirun and ZeRO $zero" $? "$line"
    said=$(PROGRAM=$program "$script" --plan=json 2>&1)
    [[ $said == '{"parameters":'* ]]; check "$name: the program accepts the flags" $? "$said"
    stated "$name: the stated memory for one GPU is the plan's" '[0-9.]+ GB with COAT' "$script" "$(planned "${shape[@]}")"
    stated "$name: the stated memory for eight GPUs is the plan's" "[0-9.]+ GB each with ZeRO $zero" "$script" "$(planned "${shape[@]}" --gpus 8 --zero $zero)"
    [ "$batch" -ne 2 ] || stated "$name: the stated memory with MICRO_BATCH=1 is the plan's" '[0-9.]+ GB with MICRO_BATCH=1' "$script" "$(planned "${shape[@]}" --micro-batch 1)"
    [ "$name" = olmo_1b ] || stated "$name: the stated memory with ZeRO 3 is the plan's" '[0-9.]+ GB with --zero 3' "$script" "$(planned "${shape[@]}" --gpus 8 --zero 3)"
done

script=scripts/run_gpt2_124M.sh
line=$("$script" --gpus 4 --dry-run)
has "--gpus N has the effect of GPUS=N" "$line" "-np 4"
eval "words=($line)"
has "patterns reach the program unexpanded" "${words[*]}" "--train data/tokens/fineweb10B_train_*.bin"
line=$("$script" --dry-run --train mine.bin --train-weight 2)
[[ $line != *fineweb10B_train* && $line == *" --train mine.bin --train-weight 2" ]]; check "--train replaces the script's data" $? "$line"
line=$(SLURM_SUBMIT_DIR=. bash scripts/slurm_requeue.sh --dry-run --train=mine.bin)
[[ $line != *mine_train* && $line == *" --train=mine.bin "* ]]; check "--train replaces the Slurm script's data" $? "$line"
for words in "--out $folder/elsewhere" "--out=$folder/elsewhere" "-o $folder/elsewhere"; do
    # shellcheck disable=SC2086 # words
    line=$(PROGRAM=$folder/program "$script" $words && cat "$folder/calls")
    [[ $line == *" --resume --out $folder/elsewhere "* && -d $folder/elsewhere ]]; check "${words%%[ =]*} sets the run's folder, which the script creates" $? "$line"
    rm -rf "$folder/elsewhere" "$folder/calls"
done
line=$(bash scripts/slurm_requeue.sh --dry-run --out=new --steps 7)
has "--out and --steps on the command line replace those of the Slurm script" "$line" "--out new --resume --steps 7"
STEPS=20k refused "the Slurm script refuses STEPS=20k" "STEPS: must be a whole number of at least 1 (is 20k)" bash scripts/slurm_requeue.sh --dry-run
[ "$(RECIPE=bf16 "$script" --dry-run | grep -c -- '--recipe bf16 .*--master split16')" -eq 1 ]; check "RECIPE=bf16 also sets --master split16" $?
mkdir -p "$folder/continued/step-00000005"
line=$(OUT=$folder/continued "$script" --dry-run)
[[ $line != *--recipe* ]]; check "a resumed run keeps its recipe" $? "$line"
has "RECIPE changes the recipe of a resumed run" "$(RECIPE=coat OUT=$folder/continued "$script" --dry-run)" "--recipe coat"
: >"$folder/hellaswag_val.bin"
has "a DATA folder with hellaswag_val.bin adds --hellaswag" "$(DATA=$folder "$script" --dry-run)" "--hellaswag $folder/hellaswag_val.bin"
has "TOKENIZER adds --tokenizer and --sample-every" "$(TOKENIZER=v.json "$script" --dry-run)" "--tokenizer v.json --sample-every 5000"
GPUS=3 refused "a batch that three GPUs cannot divide is refused" "on 3 GPUs; choose another MICRO_BATCH or GPUS" "$script" --dry-run
for setting in GPUS MICRO_BATCH RESTARTS; do
    refused "$setting=many is refused" "must be a whole number" env $setting=many "$script" --dry-run
done

said=$(GPUS=16 "$script" --dry-run 2>&1)
has "GPUS=16 reduces the micro-batch to 32" "$said" "--micro-batch 32"
has "a smaller micro-batch prints a note" "note: ${said#*note:}" "on each of 16 GPUs are more than a step"
GPUS=16 MICRO_BATCH=64 refused "MICRO_BATCH that does not fit GPUS is refused" "on 16 GPUs; MICRO_BATCH=32 fits" "$script" --dry-run
PROGRAM=$folder/none refused "a program that is not built is reported" "$folder/none: is not built;" "$script"
refused "launch.sh without a run script is refused" "run one of" bash scripts/launch.sh --dry-run

locked=$(find data dev scripts -type f ! -perm -u+x -exec awk 'FNR == 1 && /^#!/ { print FILENAME }' {} +)
empty "every script that names its interpreter is executable" "$locked"

# --help describes a script and runs nothing
for script in scripts/*.sh scripts/*.sbatch; do
    case $script in scripts/launch.sh | scripts/gpu.sh) continue ;; esac
    said=$(PROGRAM=$folder/program timeout 10 bash "$script" --help 2>&1)
    [[ $? -eq 0 && ! -e $folder/calls && $said == *"$(basename "$script")"* && $said != *SBATCH* ]]; check "$script --help prints the script's usage and runs nothing" $? "$said"
done
for script in dev/test/check_kill.sh dev/test/check_lost.sh dev/test/check_resume.sh; do
    said=$(PROGRAM=$folder/program timeout 10 "$script" -h 2>&1)
    [[ $? -eq 0 && ! -e $folder/calls && $said == *"$script"* && $said != *"set -"* ]]; check "$script -h prints the script's usage and runs nothing" $? "$said"
done
for command in fidelity reproduce stability time-to-loss draw; do
    command -v python3 >/dev/null || { echo "skip - scripts/lab.py $command --help: no python3"; continue; }
    said=$(scripts/lab.py $command --help 2>&1)
    [[ $? -eq 0 && $said == *"scripts/lab.py $command"* && $said == "$(scripts/lab.py $command -h)" && $(scripts/lab.py --help) == *"lab.py $command"* ]]
    check "scripts/lab.py $command --help and -h print the same usage" $? "$said"
done
for script in scripts/run_*.sh; do
    said=$("$script" --help)
    [[ $said == *$'\n  '"$script [--dry-run]"*RESTARTS=0* && $said != *Sourced* && $said != *"if they differ"* && $(grep -o 'run_[^ ]*\.sh' <<<"$said" | sort -u) == "${script##*/}" ]]
    check "$script --help lists the settings and names no other script" $? "$said"
done
script=scripts/run_gpt2_124M.sh

said=$(dev/baselines/baselines.sh --dry-run x.bin)
[[ $? -eq 0 && $(wc -l <<<"$said") -eq 30 && $said == *"--model gpt2-xl "*"--seq-len 1024 "*"--model olmo-1b "* ]]; check "baselines.sh --dry-run prints 30 commands, for three models" $? "$said"
for words in --foo "x.bin gpt3:1x1024" "x.bin gpt2:1"; do
    # shellcheck disable=SC2086 # words
    refused "baselines.sh refuses $words" "must be" dev/baselines/baselines.sh --dry-run $words
done

calls() { local n; n=$(wc -l <"$folder/calls"); : >"$folder/calls"; echo "$n"; }
: >"$folder/calls"
PROGRAM=$folder/program "$script" && [ "$(calls)" = 1 ]; check "a launch script starts the program once" $?
# restarts NAME RESTARTS CODE STARTS: runs a launch script whose program ends with CODE. Checks that the script starts
# the program STARTS times and ends with CODE.
restarts() {
    echo "$3" >"$folder/status"
    PROGRAM=$folder/program RESTARTS=$2 "$script" 2>/dev/null
    is "$1" "$? $(calls)" "$3 $4"
}
restarts "RESTARTS=2: the program is started three times if a process is lost" 2 5 3
restarts "RESTARTS=1: the program is started again if mpirun reports a kill" 1 137 2
restarts "RESTARTS=1: the program is not started again after Ctrl-C" 1 130 1
restarts "RESTARTS=2: the program is not started again if training diverges" 2 4 1

# A signal to the script reaches the program. A program that was told to end is not started again.
rm "$folder/status"
printf '#!/bin/sh\ntrap "kill \$!; exit 5" TERM\necho started >>"%s"\nsleep 30 &\nwait\n' "$folder/calls" >"$folder/ended"
chmod +x "$folder/ended"
told_to_end() { # NAME CALLS STATUS: sends SIGTERM to a launch script; checks for CALLS starts and exit code STATUS
    : >"$folder/calls"
    PROGRAM=$folder/ended "$script" 2>/dev/null &
    local pid=$! status=0
    wait_for $pid test -s "$folder/calls"
    kill -TERM $pid
    wait $pid || status=$?
    [ "$status $(calls)" = "$3 $2" ]; check "$1" $? "status $status"
}
told_to_end "SIGTERM reaches the program" 1 5
RESTARTS=3 told_to_end "after SIGTERM, RESTARTS does not start the program again" 1 5
printf '#!/bin/sh\nshift 4\n"$@"\n' >"$folder/mpirun" # SIGTERM must reach the program, which this mpirun starts
GPUS=2 RESTARTS=3 told_to_end "after SIGTERM, RESTARTS does not start mpirun again" 1 5
printf '#!/bin/sh\necho "mpirun $*"\n' >"$folder/mpirun"
mkdir "$folder/few" && for tool in bash sed dirname; do ln -s "$(command -v $tool)" "$folder/few/$tool"; done
PATH=$folder/few GPUS=2 PROGRAM=$folder/program refused "several GPUs without mpirun are refused" "mpirun: is missing," "$(command -v bash)" "$script"

# --- Slurm
has "slurm_single.sbatch runs srun" "$(bash scripts/slurm_single.sbatch 350M --seed 3)" "srun --kill-on-bad-exit=1 ./train_gpt2_fp8 --model gpt2-medium"
line=$(SLURM_NTASKS=32 SLURM_SUBMIT_DIR=$PWD SLURM_JOB_NODELIST='node[7-8]' bash scripts/slurm_multi.sbatch 124M --dry-run --seed 3)
has "slurm_multi.sbatch reduces the micro-batch for 32 GPUs" "$line" "--micro-batch 16"
has "slurm_multi.sbatch uses the first node for the rendezvous, and FLAGs override it" "$line" "--rendezvous node7 --seed 3"
has "slurm_multi.sbatch uses ZeRO 1" "$line" "--zero 1"
refused "slurm_multi.sbatch outside a job is refused" "slurm_multi.sbatch: must run as a Slurm job;" bash scripts/slurm_multi.sbatch 124M
has "slurm_multi.sbatch --dry-run prints the command outside a job" "$(bash scripts/slurm_multi.sbatch 124M --dry-run)" "--rendezvous FIRST_NODE"
has "slurm_single.sbatch runs 124M by default" "$(bash scripts/slurm_single.sbatch --dry-run --seed 3)" "--model gpt2"
refused "slurm_single.sbatch refuses an unknown size" "9B: must be one of 124M, 350M, 774M, 1558M, olmo_1b, llama2_7b, llama3_8b" bash scripts/slurm_single.sbatch 9B --dry-run
line=$(STEPS=500 bash scripts/slurm_requeue.sh --seed 3 --dry-run)
[[ $line == "srun ./train_gpt2_fp8 --model gpt2 "*" --resume --seed 3 --steps 500" ]]; check "slurm_requeue.sh --dry-run prints its command" $? "$line"

# --- NCCL settings: each script explains those that matter for it, and docs/many_gpus.md explains all of them
for settings in launch.sh:NVLS_ENABLE,DEBUG,P2P_LEVEL,SHM_DISABLE,SOCKET_IFNAME slurm_single.sbatch:NVLS_ENABLE,DEBUG \
    slurm_multi.sbatch:SOCKET_IFNAME,IB_HCA,IB_DISABLE,NVLS_ENABLE,DEBUG slurm_requeue.sh:NVLS_ENABLE,DEBUG; do
    script=scripts/${settings%%:*} missing=
    for setting in $(tr , ' ' <<<"${settings#*:}"); do
        grep -qE "^#   NCCL_$setting=[^ ]+ +[^ ].{20}" "$script" && grep -qE "^\| .NCCL_$setting=" docs/many_gpus.md || missing+=" $setting"
    done
    [ -z "$missing" ]; check "$script and docs/many_gpus.md explain NCCL's settings" $? "missing in one of them:$missing"
done

# --- figures of the docs compared with their sources
fits_row() { # NAME FLAGS...: prints the row that docs/finetuning.md must have
    local length cells="| $1 |"
    for length in 2048 4096; do
        cells+=" $("$program" --plan=json --memory-limit 83GB --recipe coat --head bf16 --seq-len $length "${@:2}" | sed -n 's/.*"largest_micro_batch": \([0-9]*\).*/\1/p') |"
    done
    echo "$cells"
}
beyond=(--offload-states --recompute 3)
fits=$(
    fits_row Llama-2-7B --model llama2-7b
    fits_row 'Llama-2-7B, `--offload-states`' --model llama2-7b --offload-states
    fits_row 'Llama-2-7B, `--offload-states --recompute 3`' --model llama2-7b "${beyond[@]}"
    fits_row 'Llama-2-13B, `--offload-states --recompute 3 --no-cache-transposed`' --model llama2-13b "${beyond[@]}" --no-cache-transposed
    fits_row 'Qwen2.5-14B, `--offload-states --recompute 3 --no-cache-transposed`' --model qwen2.5-14b "${beyond[@]}" --no-cache-transposed
)
[ "$(sed -n '/^## What fits one card/,/^## Which learning rates/{/^| --- /,/^$/{/^| [^-]/p}}' docs/finetuning.md)" = "$fits" ]; check "docs/finetuning.md: the table of micro-batches that fit one GPU is the plan's" $? "$fits"
planned_row() { # RECIPE NAME MODEL: prints the row that docs/many_gpus.md must have; a plan of more than 80 GB is in italics
    local gpus batch cells="| $2, $(tr a-z A-Z <<<"$1") |"
    for gpus in 1 2 4 8; do
        batch=1
        [ "$2" != 7B ] || [ $gpus -eq 1 ] || batch=2
        cells+=$(awk -v model="$3" -v gpus=$gpus -v recipe="$1" -v planned="$(planned --recipe "$1" --master split16 --model "$3" \
            --seq-len 2048 --micro-batch $batch --gpus $gpus --zero $((gpus > 1 ? 3 : 0)))" '
            BEGIN { if (planned + 0 > 80) planned = "*" planned "*" }
            $1 == "table7" && $2 == model && $3 == gpus && $4 == 2048 && $6 == recipe { paper = " (" ($9 == "OOM" ? "out of memory" : $9) ")" }
            END { printf " %s%s |", planned, paper }' scripts/results/paper.txt)
    done
    echo "$cells"
}
while read -r model; do
    for recipe in bf16 coat; do
        row=$(planned_row $recipe $model)
        grep -qxF "$row" docs/many_gpus.md; check "docs/many_gpus.md: the memory of ${model%% *}, $recipe is the plan's" $? "$row" "$(grep -F "${row%% |*}" docs/many_gpus.md)"
    done
done <<<"7B llama2-7b
13B llama2-13b
30B llama-30b"
modelled=$(awk -f scripts/step_time.awk)
[ "$(grep -A 100 '^| model | tokens' docs/many_gpus.md | sed '/^$/,$d')" = "$modelled" ]; check "docs/many_gpus.md: the table of step times is that of step_time.awk" $? "$modelled"
exit $failures
