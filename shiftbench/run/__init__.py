"""A run: settings, plan, worker, resume. Files and processes live here, mathematics does not."""
