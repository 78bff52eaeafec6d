"""The status page: one static document that reads the admin API with the operator's token."""

from resync.admin.page.routes import add_page_routes

__all__ = ["add_page_routes"]
