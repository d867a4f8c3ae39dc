"""Table 6: retrieval of classes that training did not have."""

STUDIES = {"t6": "t6:T6"}
TASKS = {"retrieval": "retrieval:Retrieval"}
LAYOUTS = {
    "cars-196": "photos:CARS",
    "cub": "photos:CUB",
    "in-shop": "photos:IN_SHOP",
    "sop": "photos:PRODUCTS",
}
