// A share consumer in explicit mode that stops a batch at its first error (the third program of
// KIP-932): records before it are accepted, the failed one is rejected, the rest come again.
//
// A consumer of Kafka 4.3 does not poll while records have no outcome. RENEW keeps the rest: a
// later poll returns them, in the same delivery. RELEASE would give them to any member, and count
// as a delivery.
//
// java -cp "kafka-clients.jar:..." StopAtFirstError.java BOOTSTRAP GROUP TOPIC

import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

public class StopAtFirstError {
    private static final Duration POLL = Duration.ofMillis(200);
    private static volatile boolean stopping;

    public static void main(String[] args) throws InterruptedException {
        stopOnSigterm(Thread.currentThread());
        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("group.id", args[1]);
        config.put("share.acknowledgement.mode", "explicit");
        config.put("max.poll.records", "10");
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(
                config, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(args[2]));
            while (!stopping) {
                boolean failed = false;
                for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                    if (stopping) {
                        break;  // close() releases what has no outcome
                    }
                    AcknowledgeType outcome = AcknowledgeType.RENEW;
                    if (!failed) {
                        outcome = outcomeOf(record);
                        failed = outcome == AcknowledgeType.REJECT;
                    }
                    log(outcome.name(), record);
                    consumer.acknowledge(record, outcome);
                }
                consumer.commitSync().forEach((partition, error) -> error.ifPresent(reason ->
                    System.err.println("not acknowledged: " + partition + ": " + reason)));
                // After an error, a real program would look for its cause here.
            }
        }
        System.out.println("CLOSED");
    }

    private static AcknowledgeType outcomeOf(ConsumerRecord<String, String> record)
            throws InterruptedException {
        try {
            work(record);
            return AcknowledgeType.ACCEPT;
        } catch (RuntimeException failed) {
            return AcknowledgeType.REJECT;
        }
    }

    /** The work on a record, here a stand-in: "never" fails. */
    private static void work(ConsumerRecord<String, String> record) throws InterruptedException {
        log("WORK", record);
        switch (record.value()) {
            case "never" -> throw new IllegalArgumentException("no such order");
            case "slow" -> Thread.sleep(500);
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
