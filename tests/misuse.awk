# tests/misuse.awk - from the preprocessed headers: a call of every public function with zero arguments
#
# Output: for each function MISUSE_CALL(name, kind, call), where kind says how its result reports a failure:
# POINTER (NULL), TRUTH (false), NUMBER (negative, or NaN) or NONE.

# One declaration in one line: up to a ; outside of braces and parentheses.
{
    for (i = 1; i <= length($0); i++) {
        c = substr($0, i, 1)
        if (c ~ /[({[]/) depth++
        if (c ~ /[)}\]]/) depth--
        text = text c
        if (c == ";" && !depth) { declaration(text); text = "" }
        if (c == "}" && !depth && text !~ /^ *(typedef|struct|enum|union)/) text = "" # a function's body
    }
    text = text " "
}
function declaration(d,    name, result, at, parameters, n, p, k, call) {
    if (!sub(/^ *__attribute__\(\(visibility\("[a-z]*"\)\)\) */, "", d)) return
    while (sub(/__attribute__ ?\(\([^;]*\)\)/, "", d)) {}
    if (!match(d, /f[lv]k?_[a-z_0-9]*\(/)) return
    name = substr(d, RSTART, RLENGTH - 1)
    if (name ~ /__/) return
    result = substr(d, 1, RSTART - 1)
    parameters = substr(d, RSTART + RLENGTH)
    sub(/\) *;$/, "", parameters)
    n = split_parameters(parameters)
    call = ""
    for (k = 1; k <= n; k++) call = call (k > 1 ? ", " : "") zero(parameter[k])
    print "MISUSE_CALL(" name ", " kind(result) ", " name "(" call "))"
}
# Commas within parentheses do not separate parameters.
function split_parameters(text,    i, c, d, n, word) {
    n = 0
    for (i = 1; i <= length(text) + 1; i++) {
        c = i > length(text) ? "," : substr(text, i, 1)
        if (c == "(") d++
        if (c == ")") d--
        if (c != "," || d) { word = word c; continue }
        gsub(/^ +| +$/, "", word)
        if (word != "void" && word != "..." && word != "") parameter[++n] = word
        word = ""
    }
    return n
}
# 0 is a null pointer, also of arrays and functions; all else is a literal of its type.
function zero(p) {
    if (p ~ /[*[(]/) return "0"
    sub(/ [A-Za-z_0-9]+$/, "", p)
    return "(" p "){0}"
}
function kind(result) {
    if (result ~ /[*]/) return "POINTER"
    if (result ~ /_Bool/) return "TRUTH"
    return result ~ /^ *(const )?(int|int64_t|double|float|fl_op|ptrdiff_t) *$/ ? "NUMBER" : "NONE"
}
# MIT licence: see LICENSE.
