"""The cluster as web pages: read-only, and for each user as much as the API server lets that user list.

    app            assembles a dashboard and runs it
    config         its settings
    knowledge      objects followed by watches, and the view of them
    usage_sources  asks agents or Prometheus what slices use, in turn
    access         what one user may list, asked of the API server
    visible        the part of a view that a user with limited access sees
    advice         ways to recover what the bill reports as lost
    history        each card's last half hour, in memory
    explaining     why a pod waits, cached for a moment
    fitting        would it fit? explains a demand from a form as if it were a pod's
    drawing        cards as bars, and the colours of namespaces
    rendering      values to HTML
    sessions       users who have given their token to the login form
    pages          the values of each page and of its live parts
    server         routes, authentication, and the headers of every answer

The server makes whole pages. The browser asks for each live part every few seconds, and gets it only if it has changed.
`static` and `templates` are beside this file; `static/vendor` has other projects' files. NOT here: why a pod waits
(`egpu.core.explain`)."""

from egpu.apps.dashboard.app import run
from egpu.apps.dashboard.config import DashboardConfig

__all__ = ["DashboardConfig", "run"]
