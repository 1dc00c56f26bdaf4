"""Pages of this app."""

from django.urls import path

from live import views

app_name = "live"
urlpatterns = [
    path("", views.page, name="page"),
    path("state.json", views.state, name="state"),
    path("run/", views.run, name="run"),
    path("kill/", views.kill, name="kill"),
    path("nodes/<int:index>/stop/", views.switch, {"wanted": "stop"}, name="stop"),
    path("nodes/<int:index>/start/", views.switch, {"wanted": "start"}, name="start"),
]
