// A share consumer with a pool of threads for work that may take longer than a lock (KIP-1222).
//
// The threads work, and one thread alone has the consumer: it sends each outcome as soon as the
// work has ended, and renews the locks of the others after a third of their time.
//
// A poll that renews brings no new records: a consumer of Kafka 4.3 has one batch at a time, and
// its slowest record holds up the threads. So a batch is small, and a group has several consumers.
//
// java -cp "kafka-clients.jar:..." RenewPool.java BOOTSTRAP GROUP TOPIC

import java.io.IOException;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorCompletionService;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class RenewPool {
    private static final int THREADS = 4;
    private static final int BATCH = 2 * THREADS;
    private static volatile boolean stopping;

    private record Place(TopicPartition partition, long offset) {
        static Place of(ConsumerRecord<?, ?> record) {
            return new Place(
                new TopicPartition(record.topic(), record.partition()), record.offset());
        }
    }

    private final ExecutorService pool = Executors.newFixedThreadPool(THREADS);
    private final ExecutorCompletionService<AcknowledgeType> ended =
        new ExecutorCompletionService<>(pool);
    private final Map<Place, Future<AcknowledgeType>> atWork = new HashMap<>();
    private final KafkaShareConsumer<String, String> consumer;

    private RenewPool(KafkaShareConsumer<String, String> consumer) {
        this.consumer = consumer;
    }

    public static void main(String[] args) throws InterruptedException, ExecutionException {
        stopOnSigterm(Thread.currentThread());
        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("group.id", args[1]);
        config.put("share.acknowledgement.mode", "explicit");
        config.put("share.acquire.mode", "record_limit");
        config.put("max.poll.records", String.valueOf(BATCH));
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(
                config, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(args[2]));
            RenewPool program = new RenewPool(consumer);
            try {
                program.run();
            } finally {
                program.pool.shutdown();
            }
        }
        System.out.println("CLOSED");
    }

    /** Poll until the program is stopped and work that has begun is done. */
    private void run() throws InterruptedException, ExecutionException {
        long emptyNs = System.nanoTime();  // when no fetched record waited in the consumer
        while (!stopping || !atWork.isEmpty()) {
            // New records, or those of before whose locks were renewed.
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
            if (records.isEmpty()) {
                emptyNs = System.nanoTime();
            } else if (atWork.containsKey(Place.of(records.iterator().next()))) {
                acknowledge(records);
            } else {
                boolean mayBeOld = System.nanoTime() - emptyNs > lockNs() / 3;
                emptyNs = System.nanoTime();
                if (mayBeOld) {
                    // They may have waited behind a long batch, and their locks may have ended.
                    // Those that can be renewed come with the next poll.
                    records.forEach(record -> send(record, AcknowledgeType.RENEW));
                    commit(Set.of());
                } else {
                    records.forEach(this::start);
                    acknowledge(records);
                }
            }
        }
    }

    private void start(ConsumerRecord<String, String> record) {
        atWork.put(Place.of(record), ended.submit(() -> outcomeOf(record)));
    }

    private long lockNs() {
        return TimeUnit.MILLISECONDS.toNanos(consumer.acquisitionLockTimeoutMs().orElse(30_000));
    }

    /** Give each record of a poll its outcome, or renew it when a third of the lock is over. */
    private void acknowledge(ConsumerRecords<String, String> records)
            throws InterruptedException, ExecutionException {
        long renewalNs = System.nanoTime() + lockNs() / 3;
        Map<Place, ConsumerRecord<String, String>> open = new HashMap<>();
        records.forEach(record -> open.put(Place.of(record), record));
        while (!open.isEmpty()) {
            ended.poll(renewalNs - System.nanoTime(), TimeUnit.NANOSECONDS);
            boolean isDue = System.nanoTime() >= renewalNs;
            for (Place place : List.copyOf(open.keySet())) {
                if (atWork.get(place).isDone()) {
                    send(open.remove(place), atWork.remove(place).get());
                } else if (isDue) {
                    send(open.remove(place), AcknowledgeType.RENEW);
                }
            }
            commit(open.keySet());  // at once: the next record of a key waits for it
        }
    }

    /**
     * Send outcomes and renewals. They are sent while `open` records, which have none yet, are at
     * work. A poll before the answer to a renewal would fetch more records.
     */
    private void commit(Set<Place> open) {
        consumer.commitSync().forEach((partition, error) -> error.ifPresent(reason -> {
            // A lock had ended, for example. These records come again, to any member.
            System.err.println("not acknowledged: " + partition + ": " + reason);
            atWork.keySet().removeIf(place -> !open.contains(place)
                && place.partition().equals(partition.topicPartition()));
        }));
    }

    private void send(ConsumerRecord<String, String> record, AcknowledgeType type) {
        log(type.name(), record);
        consumer.acknowledge(record, type);
    }

    /** In a thread of the pool. Work that has not begun when the program stops is released. */
    private static AcknowledgeType outcomeOf(ConsumerRecord<String, String> record)
            throws InterruptedException {
        if (stopping) {
            return AcknowledgeType.RELEASE;
        }
        try {
            work(record);
            return AcknowledgeType.ACCEPT;
        } catch (IOException failed) {
            return AcknowledgeType.RELEASE;
        } catch (RuntimeException failed) {
            return AcknowledgeType.REJECT;
        }
    }

    /** The work on a record, here a stand-in: "later" fails once, "never" fails each time. */
    private static void work(ConsumerRecord<String, String> record)
            throws IOException, InterruptedException {
        log("WORK", record);
        switch (record.value()) {
            case "later" -> {
                if (record.deliveryCount().orElse((short) 1) == 1) {
                    throw new IOException("the other system is away");
                }
            }
            case "never" -> throw new IllegalArgumentException("no such order");
            case "slow" -> Thread.sleep(6000);
            default -> { }
        }
    }

    private static void log(String event, ConsumerRecord<String, String> record) {
        System.out.println(event + " " + record.offset() + " " + record.key() + " " + record.value()
            + " " + record.deliveryCount().orElse((short) 0));
    }

    /** On SIGTERM let the loop end, and wait for it. */
    private static void stopOnSigterm(Thread loop) {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopping = true;
            try {
                loop.join();
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }));
    }
}
