# Sourced by reproduce.sh: several GPUs. What the pieces measure is a list of jobs, whose figures the pieces find done.
# shellcheck shell=bash disable=SC2034,SC2154 # what reproduce.sh has set

# Lines of GPUS FUNCTION WORD..., what takes longest first.
list_jobs() {
    local asked=" ${pieces[*]} " beta
    [[ $asked != *" table1 "* ]] || for beta in "${betas[@]}"; do echo "1 measure_states $beta"; done
    [[ $asked != *" gpt2 "* ]] || list_models "$gpt2_models"
    [[ $asked != *" table7 "* ]] || list_models "$paper_models"
    [[ $asked != *" table6 "* ]] || echo "1 measure_layers"
    [[ $asked != *" figure4 "* ]] || echo "1 measure_maxima"
}
list_models() { # MODELS
    local model count batch length setting recipe micro_batch bytes
    while read -r model count batch length; do
        while read -r setting recipe micro_batch bytes; do
            [ "$micro_batch" = 0 ] || ! is_measured "$model" "$count" "$setting" "$bytes" ||
                echo "$count measure_model $model $count $recipe $micro_batch $length"
        done < <(model_settings "$model" "$count" "$batch" "$length")
    done <<<"$1"
}

# do_jobs GPU[,GPU...]: those for so many that no other has taken
do_jobs() {
    local job words gpu_ids
    IFS=, read -ra gpu_ids <<<"$1"
    export CUDA_VISIBLE_DEVICES=$1
    page=/dev/null # what fails is told by its piece
    for job in "${!jobs[@]}"; do
        read -ra words <<<"${jobs[job]}"
        if [ "${words[0]}" != ${#gpu_ids[@]} ] || ! mkdir "$out/.job-$job" 2>/dev/null; then continue; fi
        "${words[@]:1}" 2>&1 | grep -v '^failed' >&2 || true
    done
}

# groups_of COUNT: this machine's GPUs in groups of so many, those of a group with commas between
groups_of() {
    local i
    for ((i = 0; i + $1 <= ${#gpus[@]}; i += $1)); do printf '%s\n' "${gpus[@]:i:$1}" | paste -sd,; done
}

wait_for() { # FUNCTION ARGUMENT...: one process for each, which a signal ends with what it runs
    local argument
    set -m # a process group for each
    for argument in "${@:2}"; do
        "$1" "$argument" &
        child+=" -$!"
    done
    set +m
    wait
    child=''
}

use_all_gpus() {
    local count
    case " ${pieces[*]} " in *" table1 "*) choose_model || true ;; esac
    mapfile -t jobs < <(list_jobs | awk '!seen[$0]++')
    case " ${jobs[*]} " in *" llama"*) narrow_text || true ;; esac # before two need it
    [ ${#jobs[@]} -gt 1 ] || return 0
    say "What needs one GPU was measured on ${#gpus[@]} at the same time, one thing on each; then what needs several, on as many groups of so many as there are."
    for count in $(printf '%s\n' "${jobs[@]%% *}" | sort -nu); do
        # shellcheck disable=SC2046 # words
        wait_for do_jobs $(groups_of "$count")
    done
}
