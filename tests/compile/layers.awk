# layers.awk - what a file includes, calls or names of a layer above its own, and what layers, data sets, optimizers and
# packages include of the inside; exits with 1 if there is any
# usage: for each file: strip.awk FILE, then this on all of them; lines "#file PATH" part them
# Front doors, the headers of the root, include their own files; what they call is looked at.
BEGIN {
    # from the lowest; of several beginnings that fit a path the longest counts
    n = split("fl_mem.h fl/mem/|kernels/fl_|fl_tensor.h fl_backend.h fl/tensor/|fl/records/|kernels/ fl_cuda.h|fl_autograd.h fl/autograd/|" \
              "fl/ops/|fl/tools/|fl_graph.h fl/graph/|fl_data.h fl/data/|fl_nn.h fl/nn/|fl_optim.h fl/optim/|fl_dist.h fl/distributed/ kernels/dist/|" \
              "fl_text.h fl/text/|fl_speech.h fl/speech/ kernels/speech/ kernels/cuda/lattice.h|fl_vision.h fl/vision/ kernels/vision/|" \
              "fl_export.h fl/export/|" \
              "fl.h fl_all.h", layer, "|")
    for (i = 1; i <= n; i++) {
        m = split(layer[i], part, " ")
        for (j = 1; j <= m; j++) level[part[j]] = i
    }
    # the core makes its backends and registers its ops when the library starts
    split("fl_backend_cpu fl_backend_cuda_of fl__register_ops", names, " ")
    for (i in names) may[names[i]]
    # fl_tensor.h is for who uses tensors, fl_backend.h for who replaces the inside: of these folders it is included,
    # also through other headers, by those alone that register ops
    users = "^fl(_|/)(data|nn|optim|vision|speech|text|dist|distributed)(\\.h$|/)"
    split("fl/speech/lattice.h fl/speech/spectrum.h fl/vision/deform.h fl/vision/regions.h", names, " ")
    for (i in names) writes_ops[names[i]]
}

function level_of(path,    p, most, found) {
    for (p in level)
        if (index(path, p) == 1 && length(p) > most) {
            most = length(p)
            found = level[p]
        }
    return found
}

# What `path`, and the API parts of the headers that it includes, show of fl_backend.h: the name that brings it, or "".
function brings_backend(path,    list, i, n) {
    if (path == "fl_backend.h") return path
    if (path in seen) return ""
    seen[path]
    n = split(shown[path], list, " ")
    for (i = 1; i <= n; i++) if (brings_backend(list[i]) != "") return path
    return ""
}

function joined(folder, path) {
    while (sub(/^\.\.\//, "", path)) sub(/[^\/]*\/$/, "", folder)
    return folder path
}

/^#file / {
    file = $2
    folder = file
    sub(/[^\/]*$/, "", folder)
    in_api = 1
    files[file]
    next
}

/^#if.*FL_IMPL_ONLY_/ { in_api = 0 }

/^[ ]*#[ ]*include/ {
    path = joined(folder, $3)
    if (folder != "" && $3 != "") included[file, path]
    if (in_api) shown[file] = shown[file] " " path
    else if (file ~ users) hidden[file] = hidden[file] " " path
    next
}

{
    text = $0
    is_definition = text ~ /^[A-Za-z_].*[^;]$/ && text !~ /^(static|typedef|return|if|for|while|else|switch|struct|enum|union|extern)/
    first = 1
    while (match(text, /[A-Za-z_][A-Za-z_0-9]*/)) {
        name = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        if (name !~ /^f[lv]_/) continue
        if (is_definition && first && text ~ /^\(/) {
            defined_in[name] = file
            first = 0
        } else if ($0 !~ /^(FL_API|FL_PRIVATE|FL_DATA)/) used[file, name]
    }
}

END {
    for (pair in used) {
        split(pair, u, SUBSEP)
        if (!(u[2] in defined_in) || u[2] in may) continue
        if (level_of(defined_in[u[2]]) > level_of(u[1])) {
            print u[1] ": " u[2] "() of " defined_in[u[2]] " is above"
            bad = 1
        }
    }
    for (pair in included) {
        split(pair, u, SUBSEP)
        if (level_of(u[2]) > level_of(u[1])) {
            print u[1] ": includes " u[2] ", which is above"
            bad = 1
        }
    }
    for (file in files) {
        if (file !~ users) continue
        m = split(shown[file] " " hidden[file], list, " ")
        through = ""
        for (i = 1; i <= m && through == ""; i++) {
            split("", seen)
            through = brings_backend(list[i])
        }
        if ((through != "") == (file in writes_ops)) continue
        bad = 1
        if (through == "") print file ": is in the list of those that register ops, but does not include fl_backend.h"
        else print file ": includes fl_backend.h" (through == "fl_backend.h" ? "" : " through " through) ", but registers no op"
    }
    exit bad
}
# MIT licence: see LICENSE.
