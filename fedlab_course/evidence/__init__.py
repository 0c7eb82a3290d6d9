"""Fair comparisons on real data, and the verdicts on the papers' claims.

    python -m fedlab_course.evidence train fisc --jobs 2    what is not yet kept
    python -m fedlab_course.evidence pack fisc              into two archives
    python -m fedlab_course.evidence tables fisc            and figures/verdicts.csv

``train`` goes from the most to the least important run and can be stopped at any time.

Each seed deals a new partition and draws a new network and new cohorts, the same for
all methods, so methods are compared seed by seed. The learning rate of each method is
chosen on validation data, with equal budgets (see ``tune``). The last round is
reported, as in the papers.
"""

from .runs import Outcome, outcome, pack, train
from .studies import STUDIES
from .study import Study
from .tables import Kept, claims, compared, comparisons, tables, verdicts
