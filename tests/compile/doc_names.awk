# doc_names.awk - the repository's paths and fl's names in a page: awk -f doc_names.awk PAGE
#
# Prints a line each: "link TARGET" of links, "path P" of words in backquotes with a slash or of a header of the root,
# "name N" of fl_, fv_, flk_, flm_, FL_ and FV_ words anywhere. URLs are left out.

function words(s, pattern, kind) {
    while (match(s, pattern)) {
        print kind, substr(s, RSTART, RLENGTH)
        s = substr(s, RSTART + RLENGTH)
    }
}

/^```/ { inside = !inside; next }
{
    line = $0
    gsub(/https?:[^ )]*/, "", line)
    s = line
    while (!inside && match(s, /\]\([^)]*\)/)) {
        target = substr(s, RSTART + 2, RLENGTH - 3)
        if (target != "") print "link", target
        s = substr(s, RSTART + RLENGTH)
    }
    s = line
    while (!inside && match(s, /`[^`]+`/)) {
        code = substr(s, RSTART + 1, RLENGTH - 2)
        s = substr(s, RSTART + RLENGTH)
        n = split(code, word, /[^A-Za-z0-9_.\/*-]+/)
        for (i = 1; i <= n; i++)
            if (word[i] ~ /^[A-Za-z.][A-Za-z0-9_.*-]*\// || word[i] ~ /^fl[a-z_]*\.[hc]$/ ||
                (n == 1 && word[i] ~ /^[A-Za-z0-9_]+\.(h|c|inc|cu|awk|py|md)$/)) print "path", word[i]
    }
    gsub(/`(f[lv]|FL|FV)[A-Za-z_]*[_*]`/, "", line) # prefixes: `fl_`
    s = line
    while (match(s, /(^|[^A-Za-z0-9_])(fl|fv|flk|flm|FL|FV)_[A-Za-z0-9_]*[A-Za-z0-9]/)) {
        name = substr(s, RSTART, RLENGTH)
        s = substr(s, RSTART + RLENGTH)
        sub(/^[^A-Za-z0-9_]/, "", name)
        if (s !~ /^(\*|_*<|\.[hc])/) print "name", name
    }
}
# MIT licence: see LICENSE.
