import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.LinkedBlockingQueue;
import jdk.jshell.EvalException;
import jdk.jshell.JShell;
import jdk.jshell.JShellException;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis;

/**
 * Runs Java for the code interpreter, by the JDK's own JShell. Both directions of the protocol are on descriptor 0, which
 * is a socket: frames of a letter, a length, a line feed and so many bytes.
 *
 * <p>It hears {@code c} code, {@code p} properties to set ({@code +name}) or to remove ({@code -name}), {@code s} stop what
 * runs. It says {@code o} output, {@code e} output of errors, {@code r} a result, {@code x} an error (name, value, traceback,
 * with NUL between), {@code d} the end of an order.
 */
public final class CofferJava {
    private static final int LARGEST = 32 << 20;
    /** What is printed in one piece is sent in frames of at most this. */
    private static final int PIECE = 64 << 10;

    private static final String[] IMPORTS = {
        "java.io.*", "java.math.*", "java.net.*", "java.nio.file.*", "java.util.*", "java.util.concurrent.*",
        "java.util.function.*", "java.util.regex.*", "java.util.stream.*",
    };

    private record Frame(char kind, String text) {}

    private static final OutputStream WIRE = new FileOutputStream(FileDescriptor.in);

    private static synchronized void say(char kind, byte[] bytes, int from, int count) {
        try {
            byte[] head = (kind + " " + count + "\n").getBytes(StandardCharsets.US_ASCII);
            byte[] frame = new byte[head.length + count];
            System.arraycopy(head, 0, frame, 0, head.length);
            System.arraycopy(bytes, from, frame, head.length, count);
            WIRE.write(frame);
        } catch (IOException gone) {
            Runtime.getRuntime().halt(1);
        }
    }

    private static void say(char kind, String text) {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        say(kind, bytes, 0, bytes.length);
    }

    /** What code prints goes out at once. A subclass, so that a line and its end are two writes, as in other kernels. */
    private static final class Printer extends PrintStream {
        Printer(char kind) {
            super(new OutputStream() {
                @Override
                public void write(int one) {
                    say(kind, new byte[] {(byte) one}, 0, 1);
                }

                @Override
                public void write(byte[] bytes, int from, int count) {
                    for (int at = 0; at < count; at += PIECE) {
                        say(kind, bytes, from + at, Math.min(PIECE, count - at));
                    }
                }
            }, false, StandardCharsets.UTF_8);
        }
    }

    private static Frame read(DataInputStream in) throws IOException {
        StringBuilder head = new StringBuilder();
        for (int one = in.read(); one != '\n'; one = in.read()) {
            if (one < 0 || head.length() > 16) {
                return null;
            }
            head.append((char) one);
        }
        int count = Integer.parseInt(head.substring(2));
        if (count < 0 || count > LARGEST) {
            return null;
        }
        byte[] bytes = new byte[count];
        in.readFully(bytes);
        return new Frame(head.charAt(0), new String(bytes, StandardCharsets.UTF_8));
    }

    public static void main(String[] arguments) throws Exception {
        DataInputStream in = new DataInputStream(new BufferedInputStream(new FileInputStream(FileDescriptor.in)));
        System.setOut(new Printer('o'));
        System.setErr(new Printer('e'));
        System.setIn(InputNobodyHas.STREAM);
        LinkedBlockingQueue<Frame> orders = new LinkedBlockingQueue<>();
        try (JShell shell = JShell.builder().executionEngine("local").in(System.in).out(System.out).err(System.err).build()) {
            for (String name : IMPORTS) {
                shell.eval("import " + name + ";");
            }
            Thread reader = new Thread(() -> {
                try {
                    for (Frame frame = read(in); frame != null; frame = read(in)) {
                        if (frame.kind() == 's') {
                            shell.stop();
                        } else {
                            orders.add(frame);
                        }
                    }
                } catch (IOException | RuntimeException ended) {
                    // Nobody is there any more.
                }
                Runtime.getRuntime().halt(0);
            }, "orders");
            reader.setDaemon(true);
            reader.start();
            while (true) {
                Frame order = orders.take();
                if (order.kind() == 'p') {
                    change(order.text());
                } else {
                    run(shell, order.text());
                }
                System.out.flush();
                System.err.flush();
                say('d', "");
            }
        }
    }

    private static void change(String text) throws IOException {
        Properties changes = new Properties();
        changes.load(new StringReader(text));
        for (String name : changes.stringPropertyNames()) {
            if (name.startsWith("-")) {
                System.clearProperty(name.substring(1));
            } else {
                System.setProperty(name.substring(1), changes.getProperty(name));
            }
        }
    }

    /** Runs the snippets of a cell up to the first one that fails. The last value is the result. */
    private static void run(JShell shell, String code) {
        String result = null;
        SourceCodeAnalysis analysis = shell.sourceCodeAnalysis();
        for (String rest = code; !rest.isBlank(); ) {
            SourceCodeAnalysis.CompletionInfo next = analysis.analyzeCompletion(rest);
            // The rest of one that is not complete is told by the compiler, in its own words.
            String source = next.completeness().isComplete() ? next.source() : rest;
            rest = next.completeness().isComplete() ? next.remaining() : "";
            for (SnippetEvent event : shell.eval(source)) {
                if (event.causeSnippet() != null) {
                    continue;
                }
                if (event.exception() != null) {
                    raise(event.exception());
                    return;
                }
                if (event.status() == Snippet.Status.REJECTED) {
                    refuse(shell, event.snippet());
                    return;
                }
                result = isValue(event.snippet()) ? event.value() : null;
            }
        }
        if (result != null && !result.isEmpty()) {
            say('r', result);
        }
    }

    private static boolean isValue(Snippet snippet) {
        return snippet.kind() == Snippet.Kind.EXPRESSION
            || snippet.subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND;
    }

    private static void raise(JShellException thrown) {
        String name = thrown.getClass().getSimpleName();
        if (thrown instanceof EvalException known) {
            name = known.getExceptionClassName();
        }
        String value = thrown.getMessage() == null ? "" : thrown.getMessage();
        StringBuilder trace = new StringBuilder(value.isEmpty() ? name : name + ": " + value);
        for (StackTraceElement place : thrown.getStackTrace()) {
            trace.append("\n    at ").append(place);
        }
        fail(name, value, trace.toString());
    }

    private static void refuse(JShell shell, Snippet snippet) {
        List<String> said = new ArrayList<>();
        shell.diagnostics(snippet).forEach(found -> said.add(found.getMessage(Locale.ROOT)));
        String value = said.isEmpty() ? "the compiler refuses it" : said.get(0);
        fail("CompilationException", value, String.join("\n", said) + "\n" + snippet.source());
    }

    private static void fail(String name, String value, String trace) {
        say('x', name.replace('\0', ' ') + '\0' + value.replace('\0', ' ') + '\0' + trace);
    }

    /** Code that asks for input is told at once that there is none. */
    private static final class InputNobodyHas {
        static final java.io.InputStream STREAM = java.io.InputStream.nullInputStream();
    }
}
