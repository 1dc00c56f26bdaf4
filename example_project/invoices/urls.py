"""Pages of this app."""

from django.urls import path

from invoices import views

app_name = "invoices"
urlpatterns = [
    path("", views.overview, name="overview"),
    path("make/", views.make, name="make"),
    path("late-write/", views.late_write, name="late_write"),
]
