# fl/single.awk - writes one header and everything it includes as a single file
# usage: awk -v header=fl.h -f fl/single.awk LICENSE fl*.h kernels/*.h ...    (called by `make single`)
#
# The files on the command line are those that replace their #include; other includes are kept. Declarations
# come first: what the header is when included without FL_IMPLEMENTATION; then, under FL_IMPLEMENTATION,
# what a second include adds. So conditions are evaluated as far as possible: a macro is defined, not
# defined, or unknown (set by flags, compilers and users), and of a condition that is not unknown only the
# active branch is written. Include guards are written, so that the result can be included twice, but they
# never cause a file to be written twice. A text that is expanded several times, for tensors and variables
# or for each instruction set, is written each time, its comments only once.

# --- reading the files: classify each line ----------------------------------------------------------------

FNR == 1 { joined = in_comment = 0 }
{
    text[FILENAME, FNR] = $0
    lines[FILENAME] = FNR
    if (!in_comment) before_comment = "" # what a comment that continues on the next line stands behind
    code = without_comments($0)
    if (code ~ /[^ \t]/) before_comment = code ~ /^[ \t]*#[ \t]*(if|el|endif|include)/ ? "more" : "code"
    if (joined) {
        kind[FILENAME, FNR] = "more"
        directive[FILENAME, joined] = directive[FILENAME, joined] " " without_backslash(code)
    } else if (code ~ /^[ \t]*#/) {
        kind[FILENAME, FNR] = "directive"
        joined = FNR
        directive[FILENAME, FNR] = without_backslash(code)
        if (code ~ /^#undef FL/) undefined_at_first[substr(code, 8)]
        if (code ~ /^#define FL_[A-Z_0-9]+[ \t]*$/ && index(before, "def")) note_guard(code)
        before = code
    } else if (code ~ /[^ \t]/) kind[FILENAME, FNR] = "code"
    else kind[FILENAME, FNR] = before_comment != "" ? before_comment : "comment"
    if ($0 !~ /\\$/) joined = 0
}

# An include guard: #ifndef or !defined(), followed by an empty definition on the next line.
function note_guard(code,    name) {
    name = code
    gsub(/^#define |[ \t]+$/, "", name)
    if (before == "#ifndef " name || index(before, "!defined(" name ")")) is_guard[name]
}

function without_backslash(s) {
    sub(/[ \t]*\\$/, "", s)
    return s
}

# The line without comments; in_comment persists between lines.
function without_comments(s,    out, i, c, two, quote) {
    if (!in_comment && s !~ /\/[*\/]/) return s
    for (i = 1; i <= length(s); i++) {
        c = substr(s, i, 1)
        two = substr(s, i, 2)
        if (in_comment) {
            if (two == "*/") { in_comment = 0; i++ }
        } else if (quote != "") {
            out = out c
            if (c == "\\") out = out substr(s, ++i, 1)
            else if (c == quote) quote = ""
        } else if (two == "/*") { in_comment = 1; i++ }
        else if (two == "//") break
        else {
            if (c == "\"" || c == "'") quote = c
            out = out c
        }
    }
    return out
}

# --- macros: "1" defined, "0" not defined, "?" unknown; changes are logged so that a branch can be undone -

# Private names, guards and macros that fl undefines are not defined before, as no one else uses them.
function state(name) {
    if (name ~ /^FL_IMPL_ONLY/) return "0"
    if (name == "FL_IMPLEMENTATION" || name == "FL_STATIC") return "?"
    if (name in is_defined) return is_defined[name]
    return name ~ /^FL__/ || name in is_guard || name in undefined_at_first ? "0" : "?"
}

function set_macro(name, known, body) {
    log_name[++logged] = name
    log_state[logged] = state(name)
    log_body[logged] = body_of[name]
    is_defined[name] = known
    body_of[name] = body
}

# --- conditions -------------------------------------------------------------------------------------------

function next_token() {
    sub(/^[ \t]+/, "", rest)
    if (match(rest, /^([A-Za-z_][A-Za-z_0-9]*|[0-9][0-9A-Za-z.]*|&&|\|\||[=!<>]=|<<|>>|.)/)) {
        token = substr(rest, 1, RLENGTH)
        rest = substr(rest, RLENGTH + 1)
    } else token = ""
}

function value_of_or(    a, b) {
    a = value_of_and()
    while (token == "||") {
        next_token()
        b = value_of_and()
        a = a == "1" || b == "1" ? "1" : a == "0" && b == "0" ? "0" : "?"
    }
    return a
}

function value_of_and(    a, b) {
    a = value_of_compared()
    while (token == "&&") {
        next_token()
        b = value_of_compared()
        a = a == "0" || b == "0" ? "0" : a == "1" && b == "1" ? "1" : "?"
    }
    return a
}

# Only defined, !, && and || are evaluated; anything else is unknown.
function value_of_compared(    a) {
    a = value_of_one()
    while (token != "" && token != "&&" && token != "||" && token != ")") {
        next_token()
        if (token ~ /^[A-Za-z_0-9(!]/) value_of_one()
        a = "?"
    }
    return a
}

function value_of_one(    a, name, depth) {
    if (token == "!") {
        next_token()
        a = value_of_one()
        return a == "?" ? a : a == "1" ? "0" : "1"
    }
    if (token == "(") {
        next_token()
        a = value_of_or()
        next_token()
        return a
    }
    name = token
    next_token()
    if (name == "defined") {
        if (token == "(") {
            next_token()
            name = token
            next_token()
        } else name = token
        next_token()
        return state(name)
    }
    if (token == "(") { # a macro with arguments
        for (depth = 1; depth > 0 && token != ""; ) {
            next_token()
            depth += (token == "(") - (token == ")")
        }
        next_token()
        return "?"
    }
    if (name ~ /^[0-9]/) return name ~ /^0[uUlL]*$/ ? "0" : "1"
    if (state(name) == "0") return "0"
    return state(name) == "1" && body_of[name] ~ /^[01]$/ ? body_of[name] : "?"
}

# The condition of a line #if, #ifdef, #ifndef or #elif.
function condition_of(d,    name) {
    name = d
    sub(/^[ \t]*#[ \t]*/, "", name)
    if (name ~ /^ifn?def/) {
        d = name ~ /^ifndef/ ? "!defined(" : "defined("
        sub(/^ifn?def[ \t]+/, "", name)
        sub(/[ \t]+$/, "", name)
        return d name ")"
    }
    sub(/^(el)?if[ \t]*/, "", name)
    return in_half(name)
}

# The second half handles conditions of this form.
function in_half(condition) {
    gsub(/defined\(FL_IMPLEMENTATION\) && !defined\(FL_IMPL_ONLY\)/, second_half, condition)
    sub(/^1 && /, "", condition)
    return condition
}

function evaluate(condition) {
    rest = condition
    next_token()
    return value_of_or()
}

# True if it names a guard, which must guard the single file too.
function has_guard(condition) {
    while (match(condition, /FL_[A-Z_0-9]+/)) {
        if (substr(condition, RSTART, RLENGTH) in is_guard) return 1
        condition = substr(condition, RSTART + RLENGTH)
    }
    return 0
}

# What is known inside a branch from its condition being true, or false, if that names one macro.
function refine(condition, holds) {
    if (condition !~ /^!?[ \t]*defined\([A-Za-z_0-9]+\)$/) return
    if (condition ~ /^!/) holds = !holds
    gsub(/^!?[ \t]*defined\(|\)$/, "", condition)
    if (state(condition) == "?") set_macro(condition, holds ? "1" : "0", "")
}

# --- branches of the n_if enclosing conditions ------------------------------------------------------------

function open_if(condition,    value) {
    parent_live = n_if == 0 || live[n_if]
    n_if++
    frame[n_if] = ++frames
    live[n_if] = taken[n_if] = written[n_if] = guarded[n_if] = branches[frames] = touched[frames] = 0
    dead[n_if] = !parent_live
    failed[n_if] = ""
    if (!dead[n_if]) choose(condition, "#if ")
}

# Enters the branch of that condition ("1" for #else) if it is reachable.
function choose(condition, word,    value) {
    value = taken[n_if] ? "0" : condition == "1" ? "1" : evaluate(condition)
    live[n_if] = value != "0"
    if (value == "1") {
        if (written[n_if]) put("#else")
        else if (has_guard(condition)) {
            put("#if " condition)
            guarded[n_if] = 1
        }
        taken[n_if] = 1
    }
    if (value == "?") {
        put((written[n_if] ? "#elif " : "#if ") condition)
        written[n_if] = 1
    }
    mark[n_if] = logged
    if (failed[n_if] != "") refine(failed[n_if], 0)
    if (value == "?") refine(condition, 1)
    if (condition != "1" && value == "?") failed[n_if] = failed[n_if] == "" ? condition : "several"
}

# Leaves the branch: records its changes of macros and undoes them.
function end_branch(    f, t, name, b) {
    if (dead[n_if] || !live[n_if] || !written[n_if]) return
    f = frame[n_if]
    b = ++branches[f]
    for (t = mark[n_if] + 1; t <= logged; t++) {
        name = log_name[t]
        if (!((f, name) in seen)) {
            seen[f, name]
            touched_name[f, ++touched[f]] = name
        }
        end_state[f, b, name] = state(name)
        end_body[f, b, name] = body_of[name]
    }
    for (; logged > mark[n_if]; logged--) {
        is_defined[log_name[logged]] = log_state[logged]
        body_of[log_name[logged]] = log_body[logged]
    }
}

function next_branch(condition) {
    if (dead[n_if]) return
    end_branch()
    choose(condition)
}

# After #endif the state of a macro is the one that all branches agree on.
function close_if(    f, k, b, name, s, v, branch_state, branch_body) {
    if (!dead[n_if] && written[n_if]) {
        end_branch()
        if (!taken[n_if]) { # no branch was taken, perhaps
            live[n_if] = 1
            mark[n_if] = logged
            refine(failed[n_if], 0)
            end_branch()
        }
        put("#endif")
        f = frame[n_if]
        for (k = 1; k <= touched[f]; k++) {
            name = touched_name[f, k]
            for (b = 1; b <= branches[f]; b++) {
                branch_state = (f, b, name) in end_state ? end_state[f, b, name] : state(name)
                branch_body = (f, b, name) in end_state ? end_body[f, b, name] : body_of[name]
                if (b == 1) {
                    s = branch_state
                    v = branch_body
                }
                if (s != branch_state) s = "?"
                if (v != branch_body) v = "?"
            }
            set_macro(name, s, v)
        }
    }
    if (guarded[n_if]) put("#endif")
    n_if--
}

# --- writing ----------------------------------------------------------------------------------------------

function put(s) {
    out[++written_lines] = s
}

function folder_of(file) {
    return file ~ /\// ? substr(file, 1, match(file, /[^\/]*$/) - 1) : ""
}

# The file that an include of this name refers to, "" if it is not one of the given files.
function resolve(name, file,    path) {
    path = folder_of(file) name
    while (sub(/[^\/]+\/\.\.\//, "", path)) continue
    return path in lines ? path : name in lines ? name : ""
}

# Writes the include, or the file in its place; nothing if its guards exclude all of it.
function include(s, file, i,    name, path) {
    name = s
    sub(/^[ \t]*#[ \t]*include[ \t]*/, "", name)
    sub(/[ \t]+$/, "", name)
    if (name ~ /^[A-Za-z_]/) name = state(name) == "1" ? body_of[name] : ""
    path = name ~ /^"/ ? resolve(substr(name, 2, length(name) - 2), file) : ""
    if (path != "") expand(path)
    else put(text[file, i])
}

function define(s, file, i,    name, body) {
    sub(/^[ \t]*#[ \t]*define[ \t]+/, "", s)
    match(s, /^[A-Za-z_0-9]+/)
    name = substr(s, 1, RLENGTH)
    body = substr(s, RLENGTH + 1)
    if (body !~ /^\(/) gsub(/^[ \t]+|[ \t]+$/, "", body)
    set_macro(name, "1", body)
}

function expand(file,    i, d, first, base, n_code) {
    if (++depth > 40) {
        print "single: " file " includes itself without end" > "/dev/stderr"
        exit 1
    }
    first = written_lines
    base = n_if
    for (i = 1; i <= lines[file]; i++) {
        d = directive[file, i]
        if (kind[file, i] == "directive" && d ~ /^[ \t]*#[ \t]*(if|el|endif)/) {
            if (d ~ /^[ \t]*#[ \t]*if/) open_if(condition_of(d))
            else if (d ~ /^[ \t]*#[ \t]*elif/) next_branch(condition_of(d))
            else if (d ~ /^[ \t]*#[ \t]*else/) next_branch("1")
            else close_if()
            while (kind[file, i + 1] == "more") i++
        } else if (n_if > 0 && !live[n_if]) {
            continue
        } else if (kind[file, i] == "comment") {
            if (!((file, i) in shown)) put(text[file, i])
            shown[file, i]
        } else if (kind[file, i] == "directive" && d ~ /^[ \t]*#[ \t]*include/) {
            include(d, file, i)
            while (kind[file, i + 1] == "more") i++
            n_code++
        } else {
            if (d ~ /^[ \t]*#[ \t]*define/) define(d, file, i)
            if (match(d, /^[ \t]*#[ \t]*undef[ \t]+/)) set_macro(substr(d, RLENGTH + 1), "0", "")
            put(text[file, i])
            n_code++
        }
    }
    if (n_if != base) {
        print "single: " file ": #if without #endif" > "/dev/stderr"
        exit 1
    }
    depth--
}

END {
    second_half = 0
    expand(header)
    put("")
    put("#if defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY)")
    put("#line")
    second_half = 1
    expand(header)
    put("#endif")
    put("")
    put("/*")
    for (i = 1; i <= lines["LICENSE"]; i++) put(text["LICENSE", i])
    put("*/")
    # This directive keeps the line number. gcc disables -Wmisleading-indentation after one, and so does not
    # re-read the file from a distant line for each statement, which takes three times as long as all else
    # at -Wall.
    for (i = 1; i <= written_lines; i++)
        if (out[i] != "" || out[i - 1] != "") {
            printed++
            print out[i] == "#line" ? "#line " printed + 1 : out[i]
        }
}
# MIT licence: see LICENSE.
