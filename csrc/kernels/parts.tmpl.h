/* SPDX-License-Identifier: MIT
 * Parts of vectors of numbers shorter than floats.
 * Used by kernels/elements.tmpl.h, for each such type.  As vf_load_part and vf_store_part. */

FA_INLINE vf FA_TYPED(load_part)(const fa_element *p, int n) {
    fa_element lanes[VF_LANES] = {0};
    for (int i = 0; i < VF_LANES; i++)
        if (i < n) lanes[i] = p[i];
    return ve_load(lanes);
}

#ifdef ve_store
FA_INLINE void FA_TYPED(store_part)(fa_element *p, vf a, int n) {
    fa_element lanes[VF_LANES];
    ve_store(lanes, a);
    for (int i = 0; i < VF_LANES; i++)
        if (i < n) p[i] = lanes[i];
}
#endif
