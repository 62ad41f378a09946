# tables.awk - whether FL_TABLE_VERSION is the digest of the op tables
#
# usage: awk -f tests/compile/tables.awk fl/tensor/op_table.h fl_backend.h
#
# Programs have the numbers of ops compiled in, so the digest is one of the names of the ops in their order. Formulas
# may change without a program being compiled again.
BEGIN { letters = "0123456789_abcdefghijklmnopqrstuvwxyz" }

/^#define FL_TABLE_VERSION / { version = $3 }
/^#define FL_(UNARY|BINARY|OTHER)_OPS\(X\)/ { inside = 1 }
inside {
    if (match($0, /^ *X\([a-z_0-9]+,/)) {
        name = substr($0, RSTART, RLENGTH)
        sub(/^ *X\(/, "", name)
        for (i = 1; i <= length(name); i++) # the comma is 0; products stay below 2^46, which is exact
            digest = (digest * 16807 + index(letters, substr(name, i, 1))) % 2147483647
        n++
    }
    inside = /\\$/
}

END {
    digest = sprintf("0x%08x", digest)
    if (n > 100 && version == digest) exit 0
    print "error: fl_backend.h: FL_TABLE_VERSION is " version ", but the digest of " n " ops is " digest
    exit 1
}
# MIT licence: see LICENSE.
