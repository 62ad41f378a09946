# private_names.awk - the private names, fl__x, fv__x and FL__X, that a stripped file uses and does not define
# The functions that register the backends, fl__register_x, and what they register an op by, FL__REGISTER, are for all
# of them.
# reads the file twice: first what it defines, static or FL_PRIVATE functions and data, types and macros; then the uses
FNR == 1 { pass++ }
pass == 1 {
    text = $0
    if (match(text, /^#[ ]*define +f[lv]__[a-zA-Z_0-9]+|^#[ ]*define +FL__[A-Za-z_0-9]+/)) {
        name = substr(text, RSTART, RLENGTH)
        sub(/.* /, "", name)
        mine[name]
    }
    # a function, object or type at file level: the first private name that is followed by ( = [ ; {
    if (text ~ /^[A-Za-z_]/ && match(text, /(f[lv]__|FL__)[A-Za-z_0-9]+ *[(=;[{]/)) {
        name = substr(text, RSTART, RLENGTH)
        gsub(/[^A-Za-z_0-9]/, "", name)
        if (text !~ /^(return|if|for|while)/ && text ~ /^(static|FL_PRIVATE|FL_API|FL_DATA|typedef|struct|union|enum|extern|_Thread_local)/) mine[name]
    }
    if (text ~ /^[A-Za-z_]/ && match(text, /FL_FN\(_[a-z_0-9]+\)\(/)) { # on tensors and on variables
        name = substr(text, RSTART + 6, RLENGTH - 8)
        mine["fl_" name]
        mine["fv_" name]
    }
    if (text ~ /^typedef .*[(][*]/ && match(text, /[(][*]f[lv]__[a-z_0-9]+/)) mine[substr(text, RSTART + 2, RLENGTH - 2)]
    if (text ~ /^[}] *(f[lv]__|FL__)[A-Za-z_0-9]+;/) {
        gsub(/[^A-Za-z_0-9]/, "", text)
        mine[text]
    }
    if (text ~ /^(typedef )?(enum|struct|union).*/) in_enum = text ~ /enum/
    if (in_enum) { # constants
        while (match(text, /(f[lv]__|FL__)[A-Za-z_0-9]+/)) {
            mine[substr(text, RSTART, RLENGTH)]
            text = substr(text, RSTART + RLENGTH)
        }
        if ($0 ~ /[}]/) in_enum = 0
    }
}
pass == 2 {
    text = $0
    while (match(text, /[A-Za-z_0-9]+/)) {
        name = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        if (name ~ /^(f[lv]__|FL__)[A-Za-z0-9]/ && !(name in mine) && name !~ /^(fl__register_.*|FL__REGISTER)$/) print name
    }
}
# MIT licence: see LICENSE.
