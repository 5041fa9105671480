"""Places where jobs run, all behind the small interface of ``base.Target``."""
