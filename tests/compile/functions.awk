# functions.awk - names of the functions that a stripped header declares with FL_API or FL_PRIVATE
/^#/ { in_macro = /\\$/; next }
in_macro { in_macro = /\\$/; next }
/^(FL_API|FL_PRIVATE)/ && match($0, /f(l|v|lk)_[a-z_0-9]*\(/) { print substr($0, RSTART, RLENGTH - 1) }
# MIT licence: see LICENSE.
