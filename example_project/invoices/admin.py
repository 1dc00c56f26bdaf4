"""Invoices in the admin. Saving a series there keeps its fence."""

from django.contrib import admin

from invoices.models import Invoice, Series

admin.site.register(Invoice, list_display=["__str__", "customer", "amount", "made_at"])
admin.site.register(Series, list_display=["year", "last", "fence"])
