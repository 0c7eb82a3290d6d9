"""Domains, classes, counts and label orders of published image data sets."""

from __future__ import annotations

from dataclasses import replace

from .folders import Layout


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PACS = Layout(
    "PACS (Li et al., ICCV 2017)",
    {
        "art_painting": (379, 255, 285, 184, 201, 295, 449),
        "cartoon": (389, 457, 346, 135, 324, 288, 405),
        "photo": (189, 202, 182, 186, 199, 280, 432),
        "sketch": (772, 740, 753, 608, 816, 80, 160),
    },
    ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
    lists=("_train_kfold.txt", "_crossval_kfold.txt"),
    numbers=(1, 2, 3, 4, 5, 6, 7),
)

OFFICE31 = Layout(
    "Office-31 (Saenko et al., ECCV 2010)",
    {
        "amazon": (
            *(92, 82, 72, 82, 36, 94, 91, 97, 97, 81, 99, 100, 100, 98, 100, 99),
            *(100, 94, 96, 95, 93, 100, 98, 98, 90, 75, 100, 99, 99, 96, 64),
        ),
        "dslr": (
            *(12, 21, 24, 12, 16, 12, 13, 14, 15, 15, 13, 10, 24, 16, 31, 22),
            *(12, 8, 10, 10, 13, 15, 23, 18, 10, 7, 18, 26, 21, 22, 15),
        ),
        "webcam": (
            *(29, 21, 28, 12, 16, 31, 40, 18, 21, 19, 27, 27, 30, 19, 30, 43),
            *(30, 27, 28, 32, 16, 20, 30, 27, 40, 11, 25, 30, 24, 23, 21),
        ),
    },
    _names(
        "back_pack bike bike_helmet bookcase bottle calculator desk_chair desk_lamp "
        "desktop_computer file_cabinet headphones keyboard laptop_computer "
        "letter_tray mobile_phone monitor mouse mug paper_notebook pen phone printer "
        "projector punchers ring_binder ruler scissors speaker stapler tape_dispenser "
        "trash_can"
    ),
)
"""Objects appear in several images, so possibly on both sides of a drawn split."""

OFFICE_CALTECH10 = Layout(
    "Office-Caltech-10 (Gong et al., CVPR 2012)",
    {
        "amazon": (92, 82, 94, 99, 100, 100, 99, 100, 94, 98),
        "caltech": (151, 110, 100, 138, 85, 128, 133, 94, 87, 97),
        "dslr": (12, 21, 12, 13, 10, 24, 22, 12, 8, 23),
        "webcam": (29, 21, 31, 27, 27, 30, 43, 30, 27, 30),
    },
    _names(
        "back_pack bike calculator headphones keyboard laptop_computer monitor mouse "
        "mug projector"
    ),
    also={
        "003.backpack": "back_pack",
        "224.touring-bike": "bike",
        "027.calculator": "calculator",
        "101.head-phones": "headphones",
        "045.computer-keyboard": "keyboard",
        "127.laptop-101": "laptop_computer",
        "046.computer-monitor": "monitor",
        "047.computer-mouse": "mouse",
        "041.coffee-mug": "mug",
        "238.video-projector": "projector",
    },
)

OFFICE10 = replace(
    OFFICE_CALTECH10,
    source="the ten Office-Caltech classes of Office-31 (Saenko et al., ECCV 2010), "
    "without the caltech domain",
    domains={d: n for d, n in OFFICE_CALTECH10.domains.items() if d != "caltech"},
    is_part=True,
)
"""Three of the four clients of Office-Caltech-10, from the files of Office-31."""

OFFICE_HOME = Layout(
    "Office-Home (Venkateswara et al., CVPR 2017)",
    {"Art": (2427,), "Clipart": (4365,), "Product": (4439,), "Real_World": (4357,)},
    _names(
        "Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar "
        "Candles Chair Clipboards Computer Couch Curtains Desk_Lamp Drill Eraser "
        "Exit_Sign Fan File_Cabinet Flipflops Flowers Folder Fork Glasses Hammer "
        "Helmet Kettle Keyboard Knives Lamp_Shade Laptop Marker Monitor Mop Mouse Mug "
        "Notebook Oven Pan Paper_Clip Pen Pencil Postit_Notes Printer Push_Pin Radio "
        "Refrigerator Ruler Scissors Screwdriver Shelf Sink Sneakers Soda Speaker "
        "Spoon TV Table Telephone ToothBrush Toys Trash_Can Webcam"
    ),
)
"""Labels in code point order, as image-folder readers number them."""

DOMAINNET10 = Layout(
    "the ten classes of DomainNet (Peng et al., ICCV 2019) that FedBN chose",
    {
        "clipart": (2629,),
        "infograph": (3283,),
        "painting": (3091,),
        "quickdraw": (5000,),
        "real": (6081,),
        "sketch": (2767,),
    },
    _names(
        "bird feather headphones ice_cream teapot tiger whale windmill wine_glass zebra"
    ),
    is_part=True,
    lists=("_train.txt", "_test.txt"),
    numbers=(31, 110, 140, 156, 302, 311, 336, 338, 340, 343),
    surplus=0.05,
)
"""The first archives contain up to 5 % more images than the cleaned lists.

The published lists are a 70/30 split. FedBN and FedFA drew their own 80/20 split; its
files are pickles, which are not read here.
"""
