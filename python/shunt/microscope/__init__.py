"""The Virtual Microscope: a page that shows a slide, whose tiles come out of a filter group.

``python -m shunt.microscope SLIDE`` (or ``shunt microscope SLIDE``) serves it. The application is that of "Impact of High Performance Sockets on Data
Intensive Applications", section 5.2: a pipeline of four filters (:mod:`shunt.microscope._filters`), asked for a new image (*complete update*), or for
what a small move of the window has made visible (*partial update*). A request of either kind is a unit of work; its partial results are tiles.

Read in this order: ``_slide`` (which tile comes from which blocks of which file), ``_tiff`` (blocks as they lie in the file), ``_filters`` (the
pipeline), ``_scope`` (the group, and updates with their times), ``_server`` (HTTP and WebSocket), ``page/`` (what the browser runs), ``_cache`` (what
is downloaded once).
"""
