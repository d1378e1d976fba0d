# Sourced by reproduce.sh: tables 2 and 6, of one layer.
# shellcheck shell=bash disable=SC2154 # what reproduce.sh has set

layer_recipes=("bf16" "bf16 --recompute 2" "fp8-linear" "coat")

# What is timed and counted: the paper's layer, which is OLMo's with heads of 128 and a feed-forward half of 2.69 times the
# width, and those of models by name. The widths of the former, and names.
layer_widths=(2048 4096) layer_models=(llama2-7b olmo-1b)

layer_flags() { # WIDTH|MODEL LAYERS
    case $1 in
    [0-9]*) echo "--model olmo:d$2 --heads $(($1 / 128)) --channels $1 --ffn $(($1 * 43 / 16))" ;;
    *) echo "--model $1 --layers $2" ;;
    esac
}

# The plans of one and of two layers: `one` and `two`.
set_layer_plans() { # WIDTH|MODEL LENGTH FLAGS...
    # shellcheck disable=SC2046 # the flags are words
    one=$(plan $(layer_flags "$1" 1) --seq-len "$2" --micro-batch 4 "${@:3}") two=$(plan $(layer_flags "$1" 2) --seq-len "$2" --micro-batch 4 "${@:3}")
}

# --- table 2 ----------------------------------------------------------------------------------------------------------

# Bytes that the second layer adds, by what the paper counts them for, in U of BYTES: norms, activation function, attention, products.
units() { # U
    awk -v unit="$1" '{
        count = split($0, tensor, /\{"name": "/)
        for (i = 2; i <= count; i++) {
            if (tensor[i] !~ /"category": "saved"/) continue
            name = tensor[i]; sub(/".*/, "", name)
            bytes = tensor[i]; sub(/.*"bytes": /, "", bytes)
            part = name ~ /^(x_in|x_mid|mean[12]|rstd[12])$/ ? 1 : name == "h" ? 2 : name ~ /^(qkv|lse)$/ ? 3 : name ~ /^(x_final|meanf|rstdf)$/ ? 0 : 4
            sum[part] += (NR == 1 ? -1 : 1) * bytes
        }
    }
    END { printf "%.3f %.3f 0 %.3f %.3f %.3f\n", sum[1] / unit, sum[2] / unit, sum[3] / unit, sum[4] / unit, (sum[1] + sum[2] + sum[3] + sum[4]) / unit }'
}

piece_table2() {
    local recipe one two
    say "## What a layer saves for backward (table 2)" "U = 2 C bytes per token, of C channels. OLMo-7B's layer, which has the paper's widths; counted by the memory plan. Attention: q, k, v and its sums; its output o counts among the products' inputs, as the paper's 5.66 U have it (3 and 2.66). The paper's BF16 keeps 22.66 U; 16.1 are enough to keep every tensor that backward reads once: the paper's norms keep FP32 inputs, and its SwiGLU keeps silu's result too. Here the rotated q and k take the place of those before rotation. Of the products' inputs COAT keeps o alone, in BF16: backward makes the others again from what norms and activation function keep."
    for recipe in "${layer_recipes[@]}"; do
        # shellcheck disable=SC2086 # the recipe has flags
        set_layer_plans 4096 2048 --recipe $recipe
        echo "${recipe// /_} $(printf '%s\n' "$one" "$two" | units $((2 * 4096 * 4 * 2048)))"
    done >"$work/table2.txt"
    [ -n "$dry_run" ] || table table2 "$work/table2.txt"
}

# --- table 6 ----------------------------------------------------------------------------------------------------------

# What one more layer saves: that needs no GPU.
planned_layers() {
    local layer length recipe one two name width
    for layer in "${layer_widths[@]}" "${layer_models[@]}"; do
        name=$layer width=$layer
        case $layer in [0-9]*) name=olmo ;; *) width=$("$planner" --plan --model "$layer" | sed -n 's/.* \([0-9]*\) channels.*/\1/p') ;; esac
        for length in 2048 4096; do
            for recipe in "${layer_recipes[@]}"; do
                # shellcheck disable=SC2086 # the recipe has flags
                set_layer_plans "$layer" $length --recipe $recipe
                echo "$name $width $length ${recipe// /_} - - - $((($(field saved "$two") - $(field saved "$one")) / (4 * length)))"
            done
        done
    done
}

# The rows of the benchmark's Markdown table: layer, hidden, length, recipe, ms forward, backward and both, bytes per token.
measured_layers() {
    awk -F'|' '/^\| [a-z0-9.:-]+ \| [0-9]+, [0-9]+ \|/ {
        split($3, at, ",")
        gsub(/ /, "", $2)
        gsub(/^ | $/, "", $4)
        gsub(/ /, "_", $4)
        print $2, at[1] + 0, at[2] + 0, $4, $5 + 0, $6 + 0, $7 + 0, $9 + 0
    }' "$out/bench_layer.log"
}

measure_layers() {
    local model_words=() name
    for name in "${layer_models[@]}"; do model_words+=(--model "$name"); done
    run bench_layer.log "$build/bench_layer_gpu" ${quick:+--quick} --block olmo "${model_words[@]}"
}

piece_table6() {
    say "## One layer (table 6)" "\`olmo\`: the layer of the paper's benchmark, OLMo's with heads of 128 and a feed-forward half of 2.69 times the width; below it those of models by name. Batch 4, values normally distributed (the paper's are uniform from 0 to 1; products run faster on constant values). The paper's times fit a batch of 4 and its MB one of 8: so bytes are per token and layer here, and its U are its MB over eight sequences."
    if [ -n "$gpu" ]; then
        measure_layers || return
        [ -n "$dry_run" ] || measured_layers >"$work/table6.txt"
    else
        planned_layers >"$work/table6.txt"
    fi
    [ -z "$dry_run" ] || return 0
    table table6 "$work/table6.txt"
    say "What part of the paper's ratio is its baseline's: its BF16 keeps 22.66 U, 45.3 bytes per token and channel, this one 32.1, so that a factor of 1.41 of its 1.70 (13.33 U) would be gained by BF16 without what it keeps twice. Beside this BF16 the paper's COAT is 1.2 times smaller. \`bf16 --recompute 2\` makes the activation function and norms again, as COAT does. \`fp8-linear\` stands beside TransformerEngine."
}
