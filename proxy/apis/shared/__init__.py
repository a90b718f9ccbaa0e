"""Parts that handlers of several APIs share: the request, the context, topics as views, refusals.

Called by the other folders of `apis`; it knows none of them.
"""
