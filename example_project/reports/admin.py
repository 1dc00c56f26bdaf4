"""Customers and reports in the admin."""

from django.contrib import admin

from reports.models import Customer, Report

admin.site.register(Customer, list_display=["name", "city"])
admin.site.register(Report, list_display=["customer", "made_at", "total", "fence"])
