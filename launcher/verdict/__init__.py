"""Why a run failed, or stands still: one verdict from all that it left."""
