# seconds.awk - the CPU seconds in what a shell's `times` writes: user and system time of itself and its children
{ for (i = 1; i <= 2; i++) s += 60 * $i + substr($i, index($i, "m") + 1) }
END { printf "%.1f\n", s }
# MIT licence: see LICENSE.
