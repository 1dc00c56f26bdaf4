"""Pages of this app."""

from django.urls import path

from imports import views

app_name = "imports"
urlpatterns = [path("", views.overview, name="overview")]
