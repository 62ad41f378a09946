# calls.awk - uses of the standard streams and of calls that end the process, with the function they stand in
# reads stripped text; -v allowed="function ..." names those that may
BEGIN {
    n = split(allowed, names, " ")
    for (i = 1; i <= n; i++) may[names[i]] = 1
    bad = "(^|[^A-Za-z0-9_.>])((printf|vprintf|puts|putchar|perror|abort|exit|_exit|_Exit|quick_exit|assert)[ ]*\\(|stdout|stderr)"
}
/^[A-Za-z_].*\(/ && !/;[ ]*$/ {
    function_name = $0
    sub(/\(.*/, "", function_name)
    sub(/.*[ *]/, "", function_name)
}
$0 ~ bad && !/^#/ && !(function_name in may) { print FILENAME ":" FNR ": " function_name ": " $0; found = 1 }
/^}/ { function_name = "" }
END { exit found }
# MIT licence: see LICENSE.
