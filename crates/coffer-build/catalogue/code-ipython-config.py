c = get_config()  # noqa: F821  IPython defines it

c.InteractiveShell.colors = "nocolor"
c.PlainTextFormatter.max_seq_length = 0
# Nobody reads a history across sessions, and its database would be one more file that is open in a pause.
c.HistoryManager.enabled = False
