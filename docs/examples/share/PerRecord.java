// A share consumer in explicit mode, with an outcome for each record:
//   ACCEPT   the work is done
//   RELEASE  it failed and may succeed later: the record comes again, before later ones of its key
//   REJECT   it will never succeed: the record does not come again
//
// java -cp "kafka-clients.jar:..." PerRecord.java BOOTSTRAP GROUP TOPIC

import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

public class PerRecord {
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
            consumer.setAcknowledgementCommitCallback((offsets, error) -> {
                if (error != null) {  // the lock had ended, for example: these come again
                    System.err.println("not acknowledged: " + offsets + ": " + error);
                }
            });
            while (!stopping) {
                for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                    if (stopping) {
                        break;  // close() releases what has no outcome
                    }
                    AcknowledgeType outcome = outcomeOf(record);
                    log(outcome.name(), record);
                    consumer.acknowledge(record, outcome);
                    consumer.commitAsync();  // at once: the next record of the key waits for it
                }
            }
        }  // close() sends the last outcomes
        System.out.println("CLOSED");
    }

    private static AcknowledgeType outcomeOf(ConsumerRecord<String, String> record)
            throws InterruptedException {
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
