/* errors_reduce.h - wrong arguments of composed reductions, scans and element-wise ops */

static void rows_of_composed_reductions(void) {
    NO(fl_prelu_channels, (NULL, o.f4), NULLS);
    NO(fl_prelu_channels, (o.f23, NULL), NULLS);
    NO(fl_prelu_channels, (o.f23, o.f4), "[2, 3]", "[4]");
    NO(fv_prelu_channels, (NULL, o.v4), NULLS);
    ROW(RAISES, "fv_prelu_channels", !fv_prelu_channels(o.v23, o.v4), "[2, 3]", "[4]");
}
