# options.awk - C or C++ text with calls of every macro of named options: without any, and with the first one; reads
# stripped headers
#
# Such a macro, f(...), appends a last field, as ._end = 0, to its arguments and stands for f_opt(..., f_opts o). A
# macro of an array of its arguments, FL_ARRAY(T, ...), is called with two of them, one of a value, as FL_SHAPE(...),
# with two zeros. The last line counts the calls.
# The text of a definition or declaration in one line.
{ line = line $0 }
/\\$/ { sub(/\\$/, " ", line); next }
line ~ /^FL_API/ && line !~ /;[ ]*$/ && line !~ /[{]/ { line = line " "; next }
line ~ /^#define f[lv]_[a-z_0-9]+\(\.\.\.\)/ {
    name = line
    gsub(/^#define |\(.*/, "", name)
    if (line ~ /= 0\)$/) macro[++macros] = name
    if (match(line, /FL_ARRAY\([^,]*,/)) {
        type = substr(line, RSTART + 9, RLENGTH - 10)
        array_calls = array_calls "void call_" name "(" type " a);\nvoid call_" name "(" type " a) {\n    (void)" name "(a, a);\n}\n"
        arrays++
    }
}
line ~ /^#define F[LV]_[A-Z_]+(\(\.\.\.\))? +\(*(FL_LITERAL\()?f[lv]_[a-z_]+[,)]/ {
    name = line
    gsub(/^#define | .*/, "", name)
    sub(/\(\.\.\.\)/, "(0, 0)", name)
    values = values "    (void)" name ";\n"
    arrays++
}
line ~ /^FL_API .*_opt\(.*[a-z_0-9]*_opts [a-z]+\).*;[ ]*$/ {
    name = line
    sub(/_opt\(.*/, "", name)
    sub(/.*[ *]/, "", name)
    parameters = line
    sub(/^[^(]*\(/, "", parameters)
    sub(/\)[^)]*;[ ]*$/, "", parameters)
    parameters_of[name] = parameters
}
# The first option is the first field that is named; of an array, one element.
/^typedef struct [a-z_0-9]*_opts [{]/ { struct = $3; fields = "" }
struct { fields = fields $0 }
struct && /[}] *[a-z_0-9]*;[ ]*$/ {
    sub(/^[^{]*[{]/, "", fields)
    n = split(fields, field, ";")
    for (i = 1; i <= n && !(struct in first); i++) {
        sub(/,.*/, "", field[i])
        sub(/.*[ *]/, "", field[i])
        if (field[i] ~ /^[a-z]/) first[struct] = field[i]
    }
    struct = ""
}
{ line = "" }
END {
    print "#include \"fl_all.h\"\n#ifdef __cplusplus\nextern \"C\" {\n#endif"
    for (i = 1; i <= macros; i++) {
        name = macro[i]
        if (!(name in parameters_of)) { print "#error no prototype of " name "_opt"; continue }
        n = split(parameters_of[name], p, ",")
        arguments = ""
        for (k = 1; k < n; k++) {
            word = p[k]
            sub(/\[[^]]*\]$/, "", word)
            sub(/.*[ *]/, "", word)
            arguments = arguments word ", "
        }
        type = p[n]
        option = type
        gsub(/^ *(const )?| *[a-z_]*$/, "", type)
        sub(/.*[ *]/, "", option)
        if (!(type in first)) { print "#error no options in " type; continue }
        required = arguments
        sub(/, $/, "", required)
        printf "void call_%s(%s);\nvoid call_%s(%s) {\n", name, parameters_of[name], name, parameters_of[name]
        printf "    (void)%s(%s);\n", name, required
        field_name = first[type]
        value = option "." field_name
        if (sub(/\[.*/, "", field_name)) value = "{" option "." field_name "[0]}"
        printf "    (void)%s(%s.%s = %s);\n}\n", name, arguments, field_name, value
    }
    print array_calls "void call_values(void);\nvoid call_values(void) {\n" values "}\n#ifdef __cplusplus\n}\n#endif\n/* " macros + arrays " macros */"
}
# MIT licence: see LICENSE.
