"""Table 6: retrieval of classes that training did not have."""

STUDIES = {"t6": "t6:T6"}
TASKS = {"retrieval": "retrieval:Retrieval"}
LAYOUTS = {
    "cars-196": "cars:LAYOUT",
    "cub": "cub:LAYOUT",
    "in-shop": "in_shop:LAYOUT",
    "sop": "products:LAYOUT",
}
