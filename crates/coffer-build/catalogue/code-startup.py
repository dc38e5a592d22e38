"""What a Python kernel shows beside text: data of frames, data of charts, JSON, and images that are saved or shown.

Nothing of it is imported before the user's code imports pandas, matplotlib or PIL, so that a plain result costs nothing.
"""


def _install():
    import importlib.util
    import sys

    from IPython import get_ipython
    from IPython.core.formatters import BaseFormatter
    from IPython.display import display
    from traitlets import ObjectName, Unicode

    shell = get_ipython()
    # A frame with more values than this is not sent as data.
    most_values = 1_000_000

    def plain(value):
        """The value as JSON has it: NaN is null, times are ISO 8601, keys are text."""
        import orjson

        def other(odd):
            if odd != odd or type(odd).__name__ in ("NaTType", "NAType"):
                return None
            return odd.isoformat() if hasattr(odd, "isoformat") else str(odd)

        options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
        return orjson.loads(orjson.dumps(value, default=other, option=options))

    class Formatter(BaseFormatter):
        """Shows objects of one class of one module, if that module is loaded."""

        _return_type = dict
        module, name = "", ""

        def __call__(self, shown):
            kind = getattr(sys.modules.get(self.module), self.name, None)
            if kind is None or not isinstance(shown, kind):
                return None
            try:
                return self.convert(shown)
            except Exception:
                return self.failed

    class DataFormatter(Formatter):
        format_type = Unicode("e2b/data")
        print_method = ObjectName("_repr_e2b_data_")
        module, name, failed = "pandas", "DataFrame", None

        def convert(self, frame):
            if frame.size > most_values:
                return None
            return plain({str(column): frame.iloc[:, place].tolist() for place, column in enumerate(frame.columns)})

    def set_bars_upright(bars):
        """Bars of equal heights, and a single bar, are not horizontal for that: containers know how they stand."""
        extract = bars.BarChart._extract_info

        def corrected(self, axes):
            extract(self, axes)
            taken = [len({bar.get_height() for bar in container}) <= 1 for container in axes.containers]
            if not any(taken) or any(container.orientation != "vertical" for container in axes.containers):
                return
            if sum(taken) % 2:
                self._change_orientation()
            labels = [label.get_text() for label in axes.get_xticklabels()]
            self.elements = [
                bars.BarData(label=label, value=bar.get_height(), group=group)
                for container in axes.containers
                for group in [container.get_label().replace("_container", "Group ")]
                for label, bar in zip(labels, container, strict=False)
            ]

        bars.BarChart._extract_info = corrected

    class ChartFormatter(Formatter):
        format_type = Unicode("e2b/chart")
        print_method = ObjectName("_repr_e2b_chart_")
        module, name, failed = "matplotlib.figure", "Figure", {}

        def convert(self, figure):
            from e2b_charts import chart_figure_to_dict
            from e2b_charts.charts import bars

            if bars.BarChart._extract_info.__module__ == bars.__name__:
                set_bars_upright(bars)
            return plain(chart_figure_to_dict(figure))

    formatters = shell.display_formatter.formatters
    for formatter in (DataFormatter, ChartFormatter):
        formatters[formatter.format_type.default_value] = formatter(parent=shell.display_formatter)

    def as_json(value):
        try:
            return plain(value)
        except Exception:
            return None

    for kind in (dict, list):
        formatters["application/json"].for_type(kind, as_json)

    def show_images(module):
        save = module.Image.save

        def save_and_show(self, fp, *arguments, **options):
            done = save(self, fp, *arguments, **options)
            # A name, not a buffer: libraries save to buffers all the time.
            if isinstance(fp, (str, bytes)) or hasattr(fp, "__fspath__"):
                display(self)
            return done

        module.Image.save = save_and_show
        module.Image.show = lambda self, *arguments, **options: display(self)

    class AfterImport:
        """Changes PIL's images when PIL is imported."""

        def find_spec(self, name, path=None, target=None):
            if name != "PIL.Image":
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.loader is not None:
                run = spec.loader.exec_module

                def run_and_change(module):
                    run(module)
                    show_images(module)

                spec.loader.exec_module = run_and_change
            return spec

    sys.meta_path.insert(0, AfterImport())


_install()
del _install
