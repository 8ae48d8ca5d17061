package helenus;

import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * What a query's source asks of a thread of Python, which plans its batches: where a batch ends, what its tasks read, what
 * to commit. Python calls Java for the next question, with the answer to the one before.
 */
public final class BatchPlanning {
    private static final long LOOK_MS = 500; // how long it may go unnoticed that it is closed
    private static final Map<String, BatchPlanning> OPEN = new ConcurrentHashMap<>();
    private static final AtomicLong COUNT = new AtomicLong();

    private final String name = "planning-" + COUNT.incrementAndGet();
    private final SynchronousQueue<Question> asked = new SynchronousQueue<>();
    private final long fetchLimitMs;
    private volatile Question current;
    private volatile String closed;

    /** Python is taken for gone once it has not fetched a question for so long. */
    public BatchPlanning(long fetchLimitMs) {
        this.fetchLimitMs = fetchLimitMs;
        OPEN.put(name, this);
    }

    private static final class Question {
        final String text;
        final CountDownLatch answered = new CountDownLatch(1);
        volatile String answer;
        volatile String error;

        Question(String text) {
            this.text = text;
        }

        void end(String answer, String error) {
            this.answer = answer;
            this.error = error;
            answered.countDown();
        }
    }

    /** By which the source's option names it. */
    public String name() {
        return name;
    }

    static BatchPlanning named(String name) {
        BatchPlanning planning = OPEN.get(name);
        if (planning == null) {
            throw new IllegalStateException("No thread of Python plans batches as " + name);
        }
        return planning;
    }

    /** In the query's thread: Python's answer. Raises its error, as text; or that Python answers no more. */
    String ask(String text) {
        Question question = new Question(text);
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(fetchLimitMs);
        try {
            while (!asked.offer(question, LOOK_MS, TimeUnit.MILLISECONDS)) {
                if (closed != null) {
                    throw new IllegalStateException(closed);
                }
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException(
                            "Python has not planned for " + fetchLimitMs / 1000 + " s (spark.network.timeout)");
                }
            }
            question.answered.await();
        } catch (InterruptedException stopped) { // the query is stopped: what Spark takes for that from such a call
            throw new UncheckedIOException(new InterruptedIOException("the query is stopped"));
        }
        if (question.error != null) {
            throw new RuntimeException(question.error);
        }
        return question.answer;
    }

    /**
     * In the thread of Java that serves Python's: answers the question before, or raises its error where it was asked, and
     * waits for the next. Returns null once it is closed.
     */
    public String next(String answer, String error) throws InterruptedException {
        endCurrent(answer, error);
        Question question;
        do {
            question = asked.poll(LOOK_MS, TimeUnit.MILLISECONDS);
        } while (question == null && closed == null);
        if (question == null) {
            return null;
        }
        synchronized (this) {
            if (closed != null) { // Python does not get this one
                question.end(null, closed);
                return null;
            }
            current = question;
        }
        return question.text;
    }

    /** No more is planned: whoever asks gets this reason as an error. Called by either side, also more than once. */
    public synchronized void close(String reason) {
        if (closed == null) {
            closed = reason;
            OPEN.remove(name);
        }
        endCurrent(null, reason);
    }

    private synchronized void endCurrent(String answer, String error) {
        Question question = current;
        current = null;
        if (question != null) {
            question.end(answer, error);
        }
    }
}
