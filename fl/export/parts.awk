# parts.awk - prints the sections of c_parts.c as string literals, a line each
# usage: awk -f fl/export/parts.awk fl/export/c_parts.c > fl/export/c_parts.inc
# tests/compile/run, check texts, compares them
function end_section() {
    if (name) print "    \"\";"
}
BEGIN { print "/* c_parts.inc - c_parts.c as string literals, made by parts.awk */" }
/^\/\* MIT licence/ { next }
/^\/\* >>/ {
    end_section()
    name = substr($2, 3)
    print "static const char fl__c_" name "_text[] =\n    \"\\n\""
    next
}
name {
    gsub(/[\\"]/, "\\\\&")
    print "    \"" $0 "\\n\""
}
END {
    end_section()
    print "/* MIT licence: see LICENSE. */"
}
# MIT licence: see LICENSE.
