"""How numbers and durations are written for people."""


def format_seconds(seconds: float) -> str:
    """Write a duration as 0:07, 12:34 or 1:02:03."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def format_number(value: float) -> str:
    """Write a metric's value with three digits, or whole where it is whole or large."""
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    if value == round(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
