# Sourced by reproduce.sh: table 7, and GPT-2 in the same form.
# shellcheck shell=bash disable=SC2034,SC2154 # what reproduce.sh has set

# Model, GPUs, the batch that all recipes have, length. The paper's rows, and OLMo-7B, whose parameters are those that the
# paper's columns add up from.
paper_models="llama2-7b 1 1 2048
olmo-7b 1 1 2048
llama2-7b 2 2 2048
olmo-7b 2 2 2048
llama2-13b 2 1 1024
llama2-7b 4 2 2048
llama2-7b 8 2 2048
llama2-13b 4 1 2048
llama2-13b 8 1 2048
llama-30b 8 1 2048"
gpt2_models="gpt2-xl 1 16 1024
gpt2 1 64 1024"

mpirun=${MPIRUN:-mpirun --bind-to none}
narrow_tokens=4194304 # more than any speed of a large model reads

model_plan() { # MODEL GPUS LENGTH RECIPE FLAGS...
    # shellcheck disable=SC2046 # the flags are words
    plan --model "$1" --seq-len "$3" --gpus "$2" --zero $(($2 > 1 ? 3 : 0)) $(recipe_flags "$4") $([ "$4" != fp8-linear ] || echo --master fp32) "${@:5}" # as measure.sh
}

# GPT-2 has the head's products in FP8 too, and larger batches where every GPU here has memory for these.
recipes_of() { # MODEL
    echo "bf16 fp8-linear coat"
    [[ $1 != gpt2* ]] || echo "coat,head=fp8"
}
settings_of() { # MODEL
    echo "equal_batch largest_in_80GB"
    [[ $1 != gpt2* || $gpu_bytes -lt 141000000000 ]] || echo "largest_in_141GB"
}

# Lines of SETTING RECIPE MICRO_BATCH BYTES: the batch that all recipes have, and the largest of each; 0: none.
model_settings() { # MODEL GPUS BATCH LENGTH
    local setting recipe batch bytes
    for setting in $(settings_of "$1"); do
        for recipe in $(recipes_of "$1"); do
            batch=$3
            [ "$setting" = equal_batch ] || batch=$(field largest_micro_batch "$(model_plan "$1" "$2" "$4" "$recipe" --memory-limit "${setting#largest_in_}")")
            bytes=0
            if [ -n "$dry_run" ]; then
                [ "$setting" = equal_batch ] || batch=LARGEST
            elif [ "$batch" != 0 ]; then
                bytes=$(field total_bytes "$(model_plan "$1" "$2" "$4" "$recipe" --micro-batch "$batch")")
            fi
            echo "$setting $recipe $batch $bytes"
        done
    done
}

# Speeds are measured where there are text, GPUs and memory: CUDA's context takes 0.6 GB, NCCL up to 1.5. With QUICK=1
# not those of the largest batches.
is_measured() { # MODEL GPUS SETTING BYTES
    [ -n "$real_text" ] && [ ${#gpus[@]} -ge "$2" ] || return
    [ "$2" -eq 1 ] || command -v "${mpirun%% *}" >/dev/null || return
    [ -n "$dry_run" ] || [ "$gpu_bytes" -eq 0 ] || [ "$gpu_bytes" -ge $(($4 + ($2 > 1 ? 2200000000 : 1000000000))) ] || return
    [ -z "$quick" ] || [ "$3" = equal_batch ]
}

text_of() { # MODEL: token files whose ids its vocabulary has
    if [[ $1 == llama* ]]; then echo "$out/narrow.bin"; else echo "$train"; fi
}
narrow_text() { run narrow.log "$build/narrow_tokens" 32000 $narrow_tokens "$train" "$out/narrow.bin" >&3; }

measure_model() { # MODEL GPUS RECIPE MICRO_BATCH LENGTH
    local log=speed-$1-$2-$3-$4 settings=(MODELS="$1" GPUS="$2" MICRO_BATCH="$4" LENGTH="$5" STEPS="$speed_steps" PROGRAM="$trainer" MPIRUN="$mpirun")
    [[ $1 != llama* ]] || narrow_text || return
    [[ $1 == gpt2* ]] || settings+=(STEP_TOKENS=32768)
    run "$log.log" env "${settings[@]}" OUT="$out/$log" scripts/measure.sh "$(text_of "$1")" "$3" >&3
}

# model_rows MODEL GPUS BATCH LENGTH: rows of the table, with the batch and, in GB, moments and saved activations, tokens/s
# per GPU, the plan's and the driver's GB.
model_rows() {
    local setting recipe batch bytes figures planned settings how
    settings=$(model_settings "$@")
    while read -r setting recipe batch bytes; do
        figures='' how=planned
        if [ "$batch" = 0 ]; then
            echo "$* $setting $recipe OOM - - - OOM - $how"
            continue
        fi
        if is_measured "$1" "$2" "$setting" "$bytes"; then
            measure_model "$1" "$2" "$recipe" "$batch" "$4" && [ -z "$dry_run" ] &&
                figures=$(tail -n 1 "$out/speed-$1-$2-$recipe-$batch.log" | awk '$3 + 0 > 0 && NF == 6 { print $3, $5, $6 }')
            if [ -n "$figures$dry_run" ]; then how=measured; else how=failed failed=yes; fi
        fi
        planned=$(model_plan "$1" "$2" "$4" "$recipe" --micro-batch "$batch")
        [ -n "$figures" ] || figures="- $(gigabytes total_bytes "$planned") -"
        echo "$* $setting $recipe $batch $(gigabytes moments "$planned") $(gigabytes saved "$planned") $figures $how"
    done <<<"$settings"
}

# What measures the rows that need more GPUs than are here.
say_commands() {
    local model count batch length most=0 commands=''
    [ -z "$gpu" ] || most=${#gpus[@]}
    # shellcheck disable=SC2016 # Markdown
    say "Planned rows, GPT-2's too, are measured by \`TRAIN=GLOB scripts/reproduce.sh table7 gpt2\`, without \`QUICK=1\`, on a machine with so many GPUs for FP8 and this memory."
    while read -r model count batch length; do
        [ "$count" -le "$most" ] ||
            commands+="MODELS=$model GPUS=$count MICRO_BATCH=$batch LENGTH=$length STEP_TOKENS=32768 scripts/measure.sh TOKENS bf16 fp8-linear coat"$'\n'
    done <<<"$paper_models"
    # shellcheck disable=SC2016 # Markdown
    [ -z "$commands" ] || say "Those of the same batch one by one, where Llama's TOKENS are what \`build/narrow_tokens 32000 $narrow_tokens GPT2_TOKENS OUT.bin\` leaves:" '```
'"$commands"'```'
}

models_table() { # FILE MODELS
    local row
    while read -r row; do
        # shellcheck disable=SC2086 # its words
        model_rows $row
    done <<<"$2" >"$work/$1.txt"
    [ -n "$dry_run" ] || table table7 "$work/$1.txt" -v limit=80
}

piece_table7() {
    say "## End to end (table 7)" "Each recipe at the same batch, then at the largest that 80·10⁹ bytes hold. Several GPUs share weights, gradients and states (ZeRO 3). Tokens/s and memory are of one GPU; \`driver\` is the peak that the driver reports, the optimizer (the two moments), activations (saved) and \`plan\` are the plan's. The paper's tokens/s are at each method's own largest batch. The paper's columns add up from OLMo-7B's parameters, and its published benchmark files name that model: so OLMo-7B stands beside Llama-2-7B. \`fp8-linear\` stands beside TransformerEngine and has FP32 masters, 2 bytes per parameter more than the others."
    [ -z "$real_text" ] || say "Text: GPT-2 tokens; for Llama those from 32,000 on, the rarer words, were left out. Of the speeds only that of the embedding's gradient depends on it."
    [ -n "$real_text" ] || [ -z "$gpu" ] || say "No speeds: name token files by TRAIN."
    models_table table7 "$paper_models"
    [ -z "$dry_run" ] || return 0
    say_commands
    awk -v limit=80 -f scripts/reproduce_bars.awk scripts/paper_figures.txt "$work/table7.txt" >"$out/memory.svg"
    say "![Peak memory per GPU](memory.svg)"
}

piece_gpt2() {
    say "## GPT-2 on one GPU" "Length 1024; \`coat,head=fp8\`: the head's products in FP8 too. The paper has no such model."
    models_table gpt2 "$gpt2_models"
}
