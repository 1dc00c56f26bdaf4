"""Pages of this app."""

from django.urls import path

from reports import views

app_name = "reports"
urlpatterns = [
    path("", views.customers, name="customers"),
    path("customers/<int:pk>/", views.detail, name="detail"),
    path("customers/<int:pk>/build/", views.build, name="build"),
]
