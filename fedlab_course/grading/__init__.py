"""Grade notebooks that were handed in.

    python -m fedlab_course.grading handed_in --profile smoke --jobs 4

Give notebooks, or folders that hold them, such as one per student. The name of a file
contains that of its chapter, as in ``01_fedavg_ada.ipynb`` and as Moodle writes it. The
answers are taken out of each notebook and checked in a process of its own, with a fresh
copy of the course, an empty environment, and limits on time, memory, the size of files
and, where the system allows it, without a network. What a notebook displays does not
count. All results go into one table, ``grades.csv``, which grows with each file. After
a stop, files that are in it are not graded again unless they or the course changed.

This stops accidents and simple tricks. Code that is written to attack the grader runs
in the process that judges it: it can forge its own verdicts, and read what your account
can read. Look at answers that you do not trust, and use a container.
"""

from .grader import grade, main, notebooks_in
