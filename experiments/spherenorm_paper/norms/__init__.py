"""Tables 1, C.1, G.1, H.6 and H.7, Figures F.1 to F.6: norms of weights on a small network."""

STUDIES = {
    "c1": "c1:C1",
    "g1": "g1:G1",
    "h6": "h6:H6",
    "h7": "h7:H7",
    "t1": "t1:T1",
    "weight-decay": "weight_decay:WEIGHT_DECAY",
}
