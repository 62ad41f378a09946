# plain_words.awk - finds phrases of the old private dialect in comments, strings and documents
#
# awk -f plain_words.awk FILE... prints file:line: phrase; write: the plain words. Exit status 1 if there are any.
# C and C++ files are searched in comments and strings, all others as a whole. Patterns match whole words, in lower case.

function rule(pattern, better) { n++; bad[n] = pattern; instead[n] = better }

BEGIN {
    rule("of one's own", "custom, of your own")
    rule("of ones? own", "custom, of your own")
    rule("(that|which|what) (is|are) none", "say what it is not, or: if there is no ...")
    rule("at hand", "available")
    rule("for ever", "forever, or: never freed")
    rule("lest", "so that ... not")
    rule("whoever", "the caller, either side")
    rule("strangers?", "an unauthenticated connection, an unknown token")
    rule("twins?", "copy, counterpart")
    rule("(no|makes?|for|is|are|has|have|of|a tape.s) rooms?", "space, capacity, workspace, file")
    rule("other people's", "third-party")
    rule("by heart", "overfits")
    rule("counts? for (none|nothing)", "is ignored")
    rule("(becomes|become|became) of", "say what happens to it")
    rule("of repeats", "if an index repeats")
    rule("for those who", "for, or: to")
    rule("as they lie", "in place, without conversion")
    rule("of nothing", "of an empty ...")
    rule("is gone|are gone|was gone", "was freed, was closed, ended")
    rule("knows? no", "has no, does not support")
    rule("somebody", "a caller, a thread, a rank")
    rule("(is|are) wanted", "required, requested")
    rule("is to (say|stay|have)", "must")
    rule("what there is", "name it")
    rule("the least that", "the minimum")
    rule("in the place of", "instead of")
        rule("than not any more", "say the condition")
    rule("hands? on", "forward, pass on")
    rule("famil(y|ies) (cuda|cpu|of tensors)", "backend")
    rule("backend famil(y|ies)", "backend")
    rule("asked for more often", "enabled")
    rule("have each other's", "swap")
    rule("texts? of models", "generated text")
    rule("the ground floor", "the base layer")
    rule("other looks", "debugging tools")
    rule("another number of", "a different number of")
    rule("what is behind", "implementation")
}

FNR == 1 { in_comment = 0; code = FILENAME ~ /\.(h|c|cc|inc|cu|cuh)$/; files++ }

# What of a line is read: in code its comments and strings.
function words(line,    out, i, c, two, quote) {
    if (!code) return line
    for (i = 1; i <= length(line); i++) {
        c = substr(line, i, 1)
        two = substr(line, i, 2)
        if (in_comment) {
            if (two == "*/") { in_comment = 0; i++ }
            else out = out c
        } else if (quote != "") {
            if (c == "\\") i++
            else if (c == quote) { quote = ""; out = out " | " }
            else out = out c
        } else if (two == "/*") { in_comment = 1; i++; out = out " | " }
        else if (two == "//") return out " | " substr(line, i + 2)
        else if (c == "\"") quote = c
        else if (c == "'") i += substr(line, i + 1, 1) == "\\" ? 3 : 2
    }
    return out
}

{
    text = " " tolower(words($0)) " "
    if (text !~ /[a-z]/) next
    if (code && text ~ /[a-z][a-z][a-z];  [a-z][a-z][a-z]/ && text !~ /[=>]/) { print FILENAME ":" FNR ": two comments joined by \";  \""; found++ }
    for (k = 1; k <= n; k++)
        if (match(text, "[^a-z_](" bad[k] ")[^a-z_]")) {
            print FILENAME ":" FNR ": \"" substr(text, RSTART + 1, RLENGTH - 2) "\"; write: " instead[k]
            found++
        }
}

END { exit found > 0 || files == 0 }
# MIT licence: see LICENSE.
