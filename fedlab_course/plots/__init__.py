"""Tables in, figures out: one style for every chapter."""

from .curves import learning_curves
from .domains import accuracy_by_domain
from .export import save_figure, save_motion, save_table
from .federation import clients_by_classes, contact_sheet
from .style import COLOURS, DOUBLE, SINGLE, SIZES, SLIDE, Picture, png, style
from .wire import wire_picture
