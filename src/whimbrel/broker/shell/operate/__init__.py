"""Operations on a running broker: reload, status, health, metrics, ``$SYS`` topics and log lines."""
