"""Pages of this app."""

from django.urls import path

from limits import views

app_name = "limits"
urlpatterns = [
    path("", views.page, name="page"),
    path("state.json", views.state, name="state"),
    path("publish/", views.publish, name="publish"),
]
