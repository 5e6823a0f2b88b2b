import java.lang.management.ManagementFactory;
import java.lang.management.MemoryPoolMXBean;
import java.lang.management.MemoryType;
import java.util.Arrays;
import java.util.SplittableRandom;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;

/**
 * Schedules n trivial tasks with random delays on the JDK's own ScheduledThreadPoolExecutor, waits for the last, and prints
 * one line of JSON.
 *
 * Arguments: tasks, greatest delay in seconds, producer threads, tasks of a warm-up round, warm-up rounds.
 *
 * A task adds one to a LongAdder. One task in STRIDE also notes how late it starts: noting each would cost as much as what is
 * measured. Delays are drawn before the clock starts. The pool has a thread for each processor; all else is as it comes.
 */
public final class ScheduledTimers {
    static final int STRIDE = 100;
    static final long SEED = 1;

    private final LongAdder ran = new LongAdder();
    private final long[] latenessNs; // by number of the sampled task
    private final long[] delaysNs;
    private final ScheduledThreadPoolExecutor executor =
            new ScheduledThreadPoolExecutor(Runtime.getRuntime().availableProcessors());

    private ScheduledTimers(int count, double spreadSeconds) {
        SplittableRandom random = new SplittableRandom(SEED);
        delaysNs = random.doubles(count).mapToLong(part -> (long) (part * spreadSeconds * 1e9)).toArray();
        latenessNs = new long[(count + STRIDE - 1) / STRIDE];
    }

    public static void main(String[] arguments) throws InterruptedException {
        int count = Integer.parseInt(arguments[0]);
        double spreadSeconds = Double.parseDouble(arguments[1]);
        int producers = Integer.parseInt(arguments[2]);
        int warmUpCount = Integer.parseInt(arguments[3]);
        for (int round = Integer.parseInt(arguments[4]); round > 0; round--) {
            new ScheduledTimers(warmUpCount, 0.2).measure(producers);
        }
        System.gc();
        ManagementFactory.getMemoryPoolMXBeans().forEach(MemoryPoolMXBean::resetPeakUsage);
        System.out.println(new ScheduledTimers(count, spreadSeconds).measure(producers));
    }

    /** Run one round and describe it as JSON: times in seconds, lateness in milliseconds, memory in bytes. */
    private String measure(int producers) throws InterruptedException {
        long cpuBefore = cpuNs();
        long begin = System.nanoTime();
        schedule(producers);
        double scheduleSeconds = (System.nanoTime() - begin) / 1e9;
        executor.shutdown(); // which lets delayed tasks run, as is its default
        executor.awaitTermination(1, TimeUnit.HOURS);
        double totalSeconds = (System.nanoTime() - begin) / 1e9;
        double cpuSeconds = (cpuNs() - cpuBefore) / 1e9;
        Arrays.sort(latenessNs);
        return "{"
                + "\"ran\": " + ran.sum()
                + ", \"schedule_seconds\": " + scheduleSeconds
                + ", \"total_seconds\": " + totalSeconds
                + ", \"cpu_seconds\": " + cpuSeconds
                + ", \"least_ms\": " + latenessMs(0)
                + ", \"p50_ms\": " + latenessMs(0.5)
                + ", \"p99_ms\": " + latenessMs(0.99)
                + ", \"max_ms\": " + latenessMs(1)
                + ", \"peak_bytes\": " + heapPeakBytes()
                + ", \"threads\": " + executor.getCorePoolSize()
                + ", \"version\": \"" + System.getProperty("java.vm.name") + " " + System.getProperty("java.vm.version") + "\""
                + ", \"collectors\": \"" + collectors() + "\""
                + "}";
    }

    private void schedule(int producers) throws InterruptedException {
        if (producers == 1) {
            scheduleRange(0, delaysNs.length);
            return;
        }
        Thread[] threads = new Thread[producers];
        for (int index = 0; index < producers; index++) {
            int first = (int) ((long) delaysNs.length * index / producers);
            int end = (int) ((long) delaysNs.length * (index + 1) / producers);
            threads[index] = new Thread(() -> scheduleRange(first, end));
            threads[index].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private void scheduleRange(int first, int end) {
        Runnable plain = ran::increment;
        for (int index = first; index < end; index++) {
            Runnable task = index % STRIDE == 0 ? sampled(index, System.nanoTime() + delaysNs[index]) : plain;
            executor.schedule(task, delaysNs[index], TimeUnit.NANOSECONDS);
        }
    }

    private Runnable sampled(int index, long dueNs) {
        return () -> {
            latenessNs[index / STRIDE] = System.nanoTime() - dueNs;
            ran.increment();
        };
    }

    private double latenessMs(double part) {
        return latenessNs[(int) Math.round((latenessNs.length - 1) * part)] / 1e6;
    }

    private static long cpuNs() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    /** The sum of the peaks of the heap's pools, which is at least the peak of the heap. */
    private static long heapPeakBytes() {
        return ManagementFactory.getMemoryPoolMXBeans().stream()
                .filter(pool -> pool.getType() == MemoryType.HEAP)
                .mapToLong(pool -> pool.getPeakUsage().getUsed())
                .sum();
    }

    private static String collectors() {
        return String.join(
                ", ",
                ManagementFactory.getGarbageCollectorMXBeans().stream().map(bean -> bean.getName()).toList());
    }
}
