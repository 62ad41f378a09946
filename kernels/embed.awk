# embed.awk - prints C text as string literals: without comments, empty lines and indentation
# usage: awk -f kernels/embed.awk FILE > ...    see tests/compile/run, check texts
{
    line = $0
    out = ""
    while (line != "") {
        if (inside) {
            at = index(line, "*/")
            if (!at) break
            line = substr(line, at + 2)
            inside = 0
        } else if (at = index(line, "/*")) {
            out = out substr(line, 1, at - 1)
            line = substr(line, at + 2)
            inside = 1
        } else {
            out = out line
            line = ""
        }
    }
    gsub(/^ +| +$/, "", out)
    gsub(/ +\\$/, " \\", out)
    if (out == "") next
    gsub(/[\\"]/, "\\\\&", out)
    text = text out "\\n"
}
END {
    file = FILENAME
    sub(/.*\//, "", file)
    name = file
    sub(/\.h$/, "_text.inc", name)
    printf "/* %s - %s as string literals, made by embed.awk */\n", name, file
    while (text != "") {
        n = length(text) < 104 ? length(text) : 104
        while (substr(text, n, 1) == "\\" && n > 90) n-- # not within an escape
        piece = substr(text, 1, n)
        text = substr(text, n + 1)
        printf "    \"%s\"%s\n", piece, ++pieces % 38 && text != "" ? "" : ","
    }
    print "/* MIT licence: see LICENSE. */"
}
# MIT licence: see LICENSE.
