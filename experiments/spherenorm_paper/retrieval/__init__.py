"""Table 6: retrieval of classes that training did not have."""

STUDIES = {"t6": "t6:T6"}
TASKS = {"retrieval": "retrieval:Retrieval"}
LAYOUTS = {
    "cars-196": "images:CARS",
    "cub": "images:CUB",
    "in-shop": "images:IN_SHOP",
    "sop": "images:PRODUCTS",
}
