# calls.awk - a macro for each public function that pushes the line of its call: build/calls.h, for FL_TRACE_CALLS
# usage: awk -f fl/calls.awk fl_*.h fl/*/*.h ...    (called by `make calls`)
#
# The macro of a function has its name, so that programs read as ever, and a function without parentheses, as in a
# table, is the function. A result passes through a pop, in its type, when the call has returned: then the line of the
# call around it is in force again. Functions that nobody calls for what they do (structs, constants, fl_site_) have none.
FNR == 1 { api = 1; text = "" }
/FL_IMPL_ONLY_/ { api = 0 }
!api { next }
match($0, /^#define f[lv]_[a-z_0-9]+\(/) { is_macro[substr($0, 9, RLENGTH - 9)] }
/^FL_API / { text = "" ; reading = 1 }
reading { text = text " " $0 }
reading && /[;{]/ {
    reading = 0
    if (!match(text, /f[lv]_[a-z_0-9]+\(/)) next
    name[++n] = substr(text, RSTART, RLENGTH - 1)
    type = substr(text, 1, RSTART - 1)
    gsub(/FL_API|^ +| +$/, "", type)
    gsub(/^ +| +$/, "", type)
    type_of[n] = type
}
END {
    print "/* calls.h - the line of each call of fl, for FL_TRACE_CALLS; made by `make calls` */"
    print "#ifndef FL_CALLS_H\n#define FL_CALLS_H"
    m = split("bool int int64_t double fl_vars", types, " ")
    for (i = 1; i <= m; i++) {
        popped[t = types[i]]
        print "static inline " t " fl__pop_" t "(" t " result) {\n    fl_site_pop((void *)0);\n    return result;\n}"
    }
    for (i = 1; i <= n; i++) {
        f = name[i]
        t = type_of[i]
        if (f in is_macro || f in seen || f ~ /^fl_(site_|place_text|error|on_error|quiet|scope_|flags|set_flags)/) continue
        seen[f]
        call = "(fl_site_push(__FILE__, __LINE__), " f "(__VA_ARGS__)"
        if (t ~ /^const|__attribute__/) continue
        if (t ~ /[*]$/) print "#define " f "(...) ((" t ")fl_site_pop(" call ")))"
        else if (t == "void") print "#define " f "(...) ((void)fl_site_pop(" call ", (void *)0)))"
        else if (t in popped) print "#define " f "(...) fl__pop_" t "(" call "))"
    }
    print "#endif\n/* MIT licence: see LICENSE. */"
}
# MIT licence: see LICENSE.
