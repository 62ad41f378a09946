# snippets.awk - makes programs of the ```c blocks of a page: awk -v out=FOLDER -f snippets.awk PAGE
#
# A block with a main is out/program_<line>.c. All other blocks of the page are out/snippets.c: those that begin with
# "// file scope" as they are, each of the rest as a function that main calls within a scope of its own, after which no
# error may be pending. Line numbers in messages are those of the page.

function flush_block(   name, n, i) {
    if (block ~ /[^A-Za-z_]main\(/) {
        name = out "/program_" start ".c"
        printf "#line %d \"%s\"\n%s", start, FILENAME, block > name
        close(name)
        return
    }
    if (block ~ /^\/\/ file scope\n/) {
        text = text sprintf("#line %d \"%s\"\n%s", start, FILENAME, block)
        return
    }
    text = text sprintf("static void snippet_%d(void) {\n#line %d \"%s\"\n%s}\n", start, start, FILENAME, block)
    calls = calls sprintf("    run(%d, snippet_%d);\n", start, start)
}

/^```c$/ && !inside { inside = 1; block = ""; start = NR + 1; next }
/^```/ && inside { inside = 0; flush_block(); next }
inside { block = block $0 "\n" }

END {
    if (inside) { printf "error: %s:%d: the block has no end\n", FILENAME, start; exit 1 }
    if (text == "") exit
    name = out "/snippets.c"
    print "#include \"fl_all.h\"\n#include \"fl_backend.h\"\n#include <math.h>\n#include <stdio.h>\n#include <stdlib.h>" > name
    print "#include <string.h>" > name
    printf "%s#line 1 \"%s\"\n", text, name > name
    print "static inline int run(int line, void (*snippet)(void)) {" > name
    printf "    printf(\"%s:%%d\\n\", line);\n    fflush(stdout);\n", FILENAME > name
    print "    fl_scope s = fl_scope_begin();\n    snippet();\n    fl_scope_end(&s);" > name
    print "    if (fl_error()) printf(\"error: %s\\n\", fl_error()), exit(1);\n    return 0;\n}" > name
    printf "int main(void) {\n%s    return fl_error() != NULL;\n}\n", calls > name
}
# MIT licence: see LICENSE.
