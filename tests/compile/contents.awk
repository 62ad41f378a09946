# contents.awk - the >>markers of a header's "Contents" against those of its body: each stands there once
/^ *Contents:/ { listing = 1; seen = 1 }
listing && /^ *$/ { listing = 0 }
listing {
    text = $0
    while (match(text, />>[a-z_0-9]+/)) {
        listed[substr(text, RSTART + 2, RLENGTH - 2)]++
        text = substr(text, RSTART + RLENGTH)
    }
    if (/\*\//) listing = 0
    next
}
match($0, /^( *|\/\* )>>[a-z_0-9]+/) {
    name = substr($0, RSTART, RLENGTH)
    sub(/.*>>/, "", name)
    if (name != "example") body[name]++
}
END {
    for (m in listed) if (listed[m] != 1 || body[m] != 1) {
        print ">>" m " stands " listed[m] + 0 " times in the contents and " body[m] + 0 " times in the body"
        bad = 1
    }
    for (m in body) if (!(m in listed)) {
        print ">>" m " is not in the contents"
        bad = 1
    }
    if (!seen) {
        print "no contents"
        bad = 1
    }
    exit bad
}
# MIT licence: see LICENSE.
