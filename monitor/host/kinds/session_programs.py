"""Programs that start logins, services, containers and desktops. Add one here, as a name in a row."""

_SESSIONS = frozenset(
    (
        *(
            "init",
            "systemd",
            "launchd",
            "login",
            "sshd",
            "sshd-session",
            "mosh-server",
            "screen",
            "cron",
            "crond",
            "atd",
        ),
        *("conmon", "dockerd", "containerd", "tini", "dumb-init", "docker-init", "supervisord", "slurmd", "kthreadd"),
        *("gnome-shell", "plasmashell", "sddm", "gdm", "lightdm"),
    )
)
_SESSION_BEGINNINGS = ("tmux", "containerd-shim", "gnome-session", "gnome-terminal", "systemd-", "(sd-pam")


def starts_sessions(name: str | None) -> bool:
    """Return True if a program of this name starts logins, services or containers, which have nothing in common."""
    return name in _SESSIONS or (name or "").startswith(_SESSION_BEGINNINGS)
