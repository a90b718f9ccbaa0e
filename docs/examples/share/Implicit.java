// A share consumer in implicit mode: the next poll accepts all that the poll before has returned.
//
// java -cp "kafka-clients.jar:..." Implicit.java BOOTSTRAP GROUP TOPIC

import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

public class Implicit {
    private static final Duration POLL = Duration.ofMillis(200);
    private static volatile boolean stopping;

    public static void main(String[] args) {
        stopOnSigterm(Thread.currentThread());
        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("group.id", args[1]);
        config.put("max.poll.records", "10");  // keys wait until the whole batch is accepted
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(
                config, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(args[2]));
            while (!stopping) {
                for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                    // An exception ends the program, and close() accepts nothing.
                    work(record);
                    log("DONE", record);
                }
            }
            consumer.commitSync();  // accept the last batch, which no poll follows
        }
        System.out.println("CLOSED");
    }

    /** The work on a record, here a stand-in. */
    private static void work(ConsumerRecord<String, String> record) {
        log("WORK", record);
        if ("slow".equals(record.value())) {
            sleep(500);
        }
    }

    private static void sleep(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted);
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
