"""Which page is where."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("reports.urls")),
    path("import/", include("imports.urls")),
    path("invoices/", include("invoices.urls")),
    path("limits/", include("limits.urls")),
    path("live/", include("live.urls")),
    path("admin/", admin.site.urls),
]
