"""Flash attention from simple to fast; each file's head says what it adds to those before.

k1_naive         one thread for each score: what attention is
k2_tiled         shared memory and the online softmax: what flash attention is
k3_tensor_core   mma.sync, ldmatrix, cp.async: the forward in 16 bits
k4_backward      gradients without atomics
k5_decode        few queries, many keys: splits that are merged by their lse
k6_varlen        packed sequences, without idle blocks
k7_wgmma         the forward on Hopper's warpgroup products
"""
