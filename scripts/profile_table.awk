# Prints the Markdown tables of scripts/profile.sh from the trace of build/libtrace.so: the time that each kind of
# kernel, and each kernel, adds to a micro-batch. Columns of the trace: start, end (both in ns), stream, mangled name.
#
#   sort -n trace.tsv | awk [-v block_flops=N -v bf16_flops=N -v head_flops=N -v attention_flops=N -v traffic=FILE]
#       [-v ceilings="GB/S FP8 BF16"] -f scripts/profile_table.awk
#
# Overlap of kernels counts once: a kernel adds only the time by which it ends later than all kernels that began before.
# A communication kernel adds only the time in which no other kernel runs. Time without kernels is a gap. Figures are
# means per micro-batch of the last complete step.
#   block_flops      FLOPs of the blocks' matmuls in a micro-batch
#   bf16_flops       FLOPs of those of the blocks' matmuls that are in BF16; contained in block_flops
#   head_flops       FLOPs of the head's matmuls in a micro-batch
#   attention_flops  FLOPs of one of attention's two forward and five backward matmuls
#   traffic          output of bench_traffic --tsv: bytes that each operation must move
#   ceilings         highest rates, for lower bounds of the times: GB/s of a copy, TFLOP/s of a matmul in FP8 (with fast
#                    accumulation), TFLOP/s of a matmul in BF16, which is also used for the head and attention

# Returns the identifier, within a mangled name, that ends with "_kernel". Finds the start of the identifier by its
# length, which the mangled name states before the identifier.
function kernel_name(name,    end, from, count) {
    if (name !~ /^_Z/ || !match(name, /_kernel/)) return ""
    end = RSTART + RLENGTH
    for (from = RSTART; from > 3; from--) {
        count = "" (end - from)
        if (substr(name, from - length(count), length(count)) == count) return substr(name, from, end - from)
    }
    return ""
}

# Returns "FILE: KERNEL" for this program's kernels and the first 60 characters of the name for a library's kernel.
function short(name,    file, kernel) {
    if (match(name, /_GLOBAL__N__[0-9a-f]+_[0-9]+_[a-z0-9_]+_cu_/)) {
        file = substr(name, RSTART, RLENGTH)
        sub(/^_GLOBAL__N__[0-9a-f]+_[0-9]+_/, "", file)
        sub(/_cu_$/, "", file)
    }
    kernel = kernel_name(name)
    return kernel == "" ? substr(name, 1, 60) : file (file != "" ? ": " : "") kernel
}

function is_matmul(name) { return name ~ /nvjet|gemm|cutlass|cublas|splitK/ && name !~ /cudnn/ }

function is_communication(name) { return name ~ /nccl|comm_count/ }

# Returns for how many nanoseconds between `from` and `to` communication runs. `from` must not decrease between calls.
function communicated(from, to,    sum, k) {
    while (seen < intervals && sent_end[seen + 1] <= from) seen++
    for (k = seen + 1; k <= intervals && sent_start[k] < to; k++)
        sum += (sent_end[k] < to ? sent_end[k] : to) - (sent_start[k] > from ? sent_start[k] : from)
    return sum
}

function kind(name) {
    if (is_matmul(name)) return "matmuls"
    if (name ~ /cudnn|flash|sdpa/) return name ~ /bprop|backward|dgrad/ ? "attention backward" : "attention forward"
    if (name ~ /attention_backward|^_Z[0-9]+(backward|statistics)_kernel/) return "attention backward"
    if (name ~ /attention_forward|^_Z[0-9]+forward_kernel/) return "attention forward"
    if (name ~ /cuda_loss/) return "head and loss"
    if (name ~ /fp8_norm|plain_norm/) return "norms"
    if (name ~ /fp8_activation|plain_activation/) return "activation"
    if (name ~ /fp8_quantize|^_Z[0-9]+cast_kernel/) return "gradients and o quantized"
    if (name ~ /fp8_weights|fp8_moments|cuda_optimizer|grad_squares|grad_norm/) return "update"
    if (name ~ /cuda_embed|RadixSort|cub/) return "embedding"
    if (name ~ /cuda_qk_norm_rope/) return "RoPE and norms of q, k"
    if (name ~ /gradients_add/) return "gradients of ranks added"
    if (name ~ /cuda_reduce/) return "sums"
    if (is_communication(name)) return "communication"
    if (name ~ /^mem/) return "copies and fills"
    return "others"
}

# Returns the kind of kernel that computes an operation, if memory bandwidth alone limits the operation; else "".
function kind_of(part, operation) {
    if (operation == "gradients_add") return "" # does not run in all micro-batches
    if (part == "update") return "update"
    if (operation ~ /^embed_/) return "" # moves fewer bytes than counted if tokens repeat
    if (operation ~ /^qk_norm_rope_/) return "RoPE and norms of q, k"
    if (operation ~ /^activation_/) return "activation"
    if (operation ~ /quantize/) return "gradients and o quantized"
    if (operation ~ /^norm_|_norm_forward|^residual_backward/) return "norms"
    if (operation ~ /^loss_forward/) return "head and loss"
    return ""
}

# lower_bound(of): returns the least time in nanoseconds that all kernels of the kind `of` need for a micro-batch at the
# rates of `ceilings`.
function attention_matmuls(of) { return of == "attention forward" ? 2 : of == "attention backward" ? 5 : 0 }
function lower_bound(of) {
    if (of == "matmuls") return (block_flops - bf16_flops) / fp8_rate / 1000 + bf16_flops / bf16_rate / 1000
    if (attention_matmuls(of)) return attention_matmuls(of) * attention_flops / bf16_rate / 1000
    return (of == "head and loss" ? head_flops / bf16_rate / 1000 : 0) + bytes[of] / copy_rate
}
function bound_cell(of,    ns) {
    if (!copy_rate) return ""
    ns = lower_bound(of) / (of == "update" ? passes : 1)
    return ns > 0 ? sprintf(" %.3f (%.0f %%) |", ns / 1e6, 100 * ns * passes / time[of]) : "  |"
}

BEGIN {
    FS = "\t"
    if (split(ceilings, ceiling, " ") == 3) { copy_rate = ceiling[1]; fp8_rate = ceiling[2]; bf16_rate = ceiling[3] }
    while (traffic != "" && (getline line < traffic) > 0) {
        split(line, of_line, FS)
        bytes[kind_of(of_line[1], of_line[2])] += of_line[3]
    }
}
{
    n++
    start[n] = $1
    end[n] = $2
    name[n] = $4
    if ($4 ~ /embed_forward_kernel/) embedded = 1
    if ($4 !~ /adamw/) next
    if (embedded && last) first = last + 1 # a step begins after the previous update
    embedded = 0
    last = n
}
END {
    if (!first) {
        print "error: the trace has no complete step; at least two updates are needed" > "/dev/stderr"
        exit 1
    }
    for (i = first; i <= last; i++) passes += name[i] ~ /embed_forward_kernel/
    # marks the head's matmuls: the last one before each kernel of the loss, and the first two after it
    for (i = first; i <= last; i++) {
        if (name[i] !~ /loss_kernel/) continue
        for (k = i - 1; k >= first && !is_matmul(name[k]); k--);
        head[k] = 1
        for (k = i + 1; k <= last && found[i] < 2; k++) if (is_matmul(name[k])) { head[k] = 1; found[i]++ }
    }
    for (i = first; i <= last; i++) {
        if (!is_communication(name[i])) continue
        count["communication"]++
        if (intervals && start[i] <= sent_end[intervals]) {
            if (end[i] > sent_end[intervals]) sent_end[intervals] = end[i]
        } else {
            sent_start[++intervals] = start[i]
            sent_end[intervals] = end[i]
        }
    }
    for (k = 1; k <= intervals; k++) sent += sent_end[k] - sent_start[k]
    reach = start[first]
    for (i = first; i <= last; i++) {
        if (is_communication(name[i])) continue
        of = i in head ? "head and loss" : kind(name[i])
        if (start[i] > reach) {
            alone = communicated(reach, start[i])
            time["communication"] += alone
            gaps += start[i] - reach - alone
            reach = start[i]
        }
        adds = end[i] > reach ? end[i] - reach : 0
        if (end[i] > reach) reach = end[i]
        time[of] += adds
        count[of]++
        if (i in head && is_matmul(name[i])) head_time += adds
        of = (i in head ? "head: " : "") short(name[i])
        kernel_time[of] += adds
        kernel_busy[of] += end[i] - start[i]
        kernel_count[of]++
        if (communicated(start[i], end[i]) * 2 < end[i] - start[i]) continue
        overlapped_busy[of] += end[i] - start[i]
        overlapped_count[of]++
    }
    for (of in overlapped_count) {
        if (kernel_count[of] == overlapped_count[of]) continue
        mean = (kernel_busy[of] - overlapped_busy[of]) / (kernel_count[of] - overlapped_count[of])
        slower += overlapped_busy[of] - overlapped_count[of] * mean
    }
    if (!intervals) delete time["communication"]
    total = reach - start[first]
    print "| kind | kernels | ms | fraction | |" (copy_rate ? " lower bound, ms (fraction) |" : "")
    print "| --- | --- | --- | --- | --- |" (copy_rate ? " --- |" : "")
    order = "sort -t '|' -k 4 -rn"
    for (of in time) {
        rate = ""
        if (of == "matmuls" && block_flops > 0) rate = sprintf("%.0f TFLOP/s", block_flops * passes / time[of] / 1000)
        if (of == "head and loss" && head_flops > 0 && head_time > 0)
            rate = sprintf("matmuls %.0f TFLOP/s", head_flops * passes / head_time / 1000)
        if (attention_matmuls(of) && attention_flops > 0)
            rate = sprintf("%.0f TFLOP/s", attention_matmuls(of) * attention_flops * passes / time[of] / 1000)
        if (of == "communication")
            rate = sprintf("runs %.3f ms; kernels during it take %.3f ms more than alone", sent / passes / 1e6,
                           slower / passes / 1e6)
        if (bytes[of] > 0 && of != "" && of != "head and loss" && time[of] > 0)
            rate = sprintf("%.0f GB/s", bytes[of] * (of == "update" ? 1 : passes) / time[of])
        printf "| %s | %.1f | %.3f | %.1f %% | %s |%s\n", of, count[of] / passes, time[of] / passes / 1e6,
            100 * time[of] / total, rate, bound_cell(of) | order
    }
    close(order)
    printf "| gaps | | %.3f | %.1f %% | |" (copy_rate ? "  |" : "") "\n", gaps / passes / 1e6, 100 * gaps / total
    printf "| all | %.1f | %.3f | | %d micro-batches |" (copy_rate ? "  |" : "") "\n\n", (last - first + 1) / passes,
        total / passes / 1e6, passes
    print "| kernel | times | µs each | adds, ms | fraction |" (intervals ? " during communication, µs each |" : "")
    print "| --- | --- | --- | --- | --- |" (intervals ? " --- |" : "")
    order = "sort -t '|' -k 5 -rn"
    for (of in kernel_time) {
        overlapped = intervals ? "  |" : ""
        if (intervals && overlapped_count[of])
            overlapped = sprintf(" %.1f of these: %.1f |", overlapped_count[of] / passes,
                                 overlapped_busy[of] / overlapped_count[of] / 1000)
        printf "| %s | %.1f | %.1f | %.3f | %.1f %% |%s\n", of, kernel_count[of] / passes,
            kernel_busy[of] / kernel_count[of] / 1000, kernel_time[of] / passes / 1e6,
            100 * kernel_time[of] / total, overlapped | order
    }
    close(order)
}
