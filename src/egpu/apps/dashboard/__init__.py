"""The cluster as a web page: read-only, for each as much as the API server lets him list.

    app          puts it together and runs it
    config       what it is told when it starts
    knowledge    what it knows: objects followed by watches, and the view of them
    sources      who publishes what slices use, asked in turn
    sight        what one user may list, asked of the API server
    visible      of a view, what somebody sees who may list only some of it
    advice       what would recover what the bill says is lost
    history      each card's last half hour, in memory
    explaining   why a pod waits, kept for a moment
    fitting      would it fit? A demand typed into a form, explained as a pod's would be
    drawing      cards as bars, and the colours of namespaces
    rendering    values to HTML
    sessions     who has given his token to the login form
    pages        what each page and each of its live parts shows
    server       routes, who gets in, and the headers of every answer

Pages are made here, whole; a live part of one is asked for every few seconds, and sent only where it has changed.
`static` and `templates` are beside this file; `static/vendor` is others' work. NOT here: why a pod waits
(`egpu.core.explain`).
"""

from egpu.apps.dashboard.app import run
from egpu.apps.dashboard.config import DashboardConfig

__all__ = ["DashboardConfig", "run"]
