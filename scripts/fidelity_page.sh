# Sourced by fidelity.sh: the page and the pictures, of everything that OUT holds.
# shellcheck shell=bash disable=SC2154 # variables of the script

# Paths by their last part, where they do not begin at the repository.
shown() { # WORD
    local word=$1
    [[ $word != /* ]] || word=${word##*/}
    if [[ $word =~ ^[A-Za-z0-9_./=,@:+-]+$ ]]; then printf '%s' "$word"; else printf "'%s'" "$word"; fi
}
command_line() {
    local name word value
    for name in RECIPES SEEDS FROM TO EVALUATE TEXTS STEPS MODEL BATCH TRAINING TEXT LIMIT EIGHTH_LIMIT; do
        value=${!name:-}
        [ "$name" != TEXTS ] || value=$(sed -E 's,=/[^ ]*/,=,g' <<<"$value")
        [ -z "$value" ] || printf '%s=%s ' "$name" "$(shown "$value")"
    done
    printf 'scripts/fidelity.sh'
    for word in "${arguments[@]}"; do printf ' %s' "$(shown "$word")"; done
    echo
}

# The settings that OUT holds, and a setting's recipes: the baseline first, then as RECIPES has them, then the others.
settings_there() {
    local setting folder
    settings_table | while read -r setting _; do
        printf '%s\n' "$out/$setting" "$out/$setting"-{from,to}-* | sort -V | while read -r folder; do [ ! -e "$folder/settings" ] || echo "${folder##*/}"; done
    done
}
recipes_there() { # SETTING
    local recipe
    { printf '%s\n' "${recipes[@]}"; ls "$out/$1"; } | awk '!listed[$0]++' | while read -r recipe; do [ ! -d "$out/$1/$recipe" ] || echo "$recipe"; done
}

collect_results() { # SETTING: the results, and "SETTING RECIPE SEED unfinished" of what has none
    local recipe seed
    for recipe in $(recipes_there "$1"); do
        for seed in $(ls "$out/$1/$recipe" | sort -V); do
            cat "$out/$1/$recipe/$seed/result" 2>/dev/null || echo "$1 $recipe $seed unfinished"
        done
    done
}

page_head() { # RESULTS...
    local machines
    echo "# Recipes against $baseline"
    machines=$(list_of 17 "$@" | tr _ ' ')
    if [ -n "$machines" ]; then machines="on $machines; version $(list_of 18 "$@")"; fi
    echo "$(date -u +%Y-%m-%d), ${machines:-no run has ended yet}."
    [ ! -e "$out/recipes" ] || awk 'BEGIN { print "" } { gsub(/,/, " --", $2); print "- " $1 ": `--recipe " $2 "`" }' "$out/recipes"
    [ ! -e "$out/texts" ] || awk 'BEGIN { print "" } { file = $2; sub(/,$/, "", file); print "- text " $1 ": `" file "`, " $3 " " $4 }' "$out/texts"
    [ ! -e "$out/commands" ] || sed 's/.*/\n    &/' "$out/commands"
    echo
    echo "Differences are from $baseline with the same seed and micro-batch, in percent of its loss; above zero is worse. Behind ± is the standard error of the mean over the pairs. 1/8 to 8/8 are the mean training losses of the eighths of the steps; $baseline has its own losses there. 1@16 is seed 1 with micro-batches of 16."
}
verdicts() {
    local setting rows
    rows=$(for setting in $(settings_there); do
        awk -v baseline="$baseline" -v setting="$setting" -v limit="$limit" -v eighth_limit="$eighth_limit" \
            -f scripts/fidelity_pairs.awk -f scripts/fidelity_verdicts.awk "$work/$setting.results"
    done)
    [ -n "$rows" ] || return 0
    echo
    echo "| setting | recipe | pairs | at the end | within $limit % | largest mean of an eighth | within $eighth_limit % |"
    echo "| --- | --- | --- | --- | --- | --- | --- |"
    echo "$rows"
    echo
    echo "Within is also a mean that lies within two standard errors of 0, where the standard error is at most 0.15 %."
}
list_of() { # FIELD RESULTS...: what there is in it
    awk -v field="$1" '$4 != "unfinished" && $4 != "text" && !listed[$field]++ { printf "%s%s", (n++ ? ", " : ""), $field }' "${@:2}"
}

setting_section() { # SETTING RESULTS
    local setting=${1%-to-*} about from='' steps tables=(-v baseline="$baseline" -f scripts/fidelity_pairs.awk)
    about=$(settings_table | awk -v name="${setting%-from-*}" '$1 == name { for (i = 9; i <= NF; i++) printf "%s%s", (i > 9 ? " " : ""), $i }')
    printf '\n## %s\n%s.' "$1" "${about^}"
    steps=$(sed -n 's/^STEPS=//p' "$out/$1/settings")
    if [ "$1" != "$setting" ]; then
        steps=${1##*-to-}
        printf ' Runs end at step %s of their schedule.' "$steps"
    fi
    if [[ $setting == *-from-* ]]; then
        from=${setting##*-from-}
        printf ' Every run goes on from one checkpoint of its seed, that of step %s of %s; eighths and gradient norms are of the steps %s to %s.' \
            "$from" "$(sed -n 's/^FROM=[0-9]*, //p' "$out/$1/settings")" $((from + 1)) "$steps"
    fi
    awk '{ name = $0; sub(/=.*/, "", name); its[name] = substr($0, length(name) + 2) }
        END { printf "\n\n`%s %s %s --steps %s`; data: %s; validation: %s.\n\n", its["MODEL"], its["BATCH"], its["TRAINING"], its["STEPS"], its["TRAIN"], its["VAL"] }' "$out/$1/settings"
    awk "${tables[@]}" -v title="$1: $about" -v from="$from" -f scripts/fidelity_picture.awk "$2" >"$out/$1.svg"
    awk "${tables[@]}" -v picture="$1.svg" -f scripts/fidelity_texts.awk -f scripts/fidelity_tables.awk "$2"
}

write_page() {
    local setting results=()
    for setting in $(settings_there); do
        results+=("$work/$setting.results")
        collect_results "$setting" >"$work/$setting.results"
    done
    [ ${#results[@]} -gt 0 ] || stop "$out holds no runs"
    {
        page_head "${results[@]}"
        verdicts
        for setting in $(settings_there); do setting_section "$setting" "$work/$setting.results"; done
    } >"$work/page"
    mv "$work/page" "$out/fidelity.md"
    echo "written: $out/fidelity.md"
}
