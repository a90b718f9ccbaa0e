// Stock Java consumers, some side by side, that read a topic to its end.
//
// stdin:  "<bootstrap> <topic> <record count> <index,index;index,...>": a member per ';' part.
// stdout: "<nanoseconds from the first record to the last> <records> <bytes>".
// One JVM for all runs, so that none pays for a cold one.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class Readers {
    static final Duration WAIT = Duration.ofMillis(100);
    static final Duration LIMIT = Duration.ofSeconds(60);

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            System.out.println(read(words[0], words[1], Long.parseLong(words[2]), words[3]));
        }
    }

    static String read(String bootstrap, String topic, long count, String members)
            throws Exception {
        AtomicLong records = new AtomicLong(), bytes = new AtomicLong();
        AtomicLong first = new AtomicLong(Long.MAX_VALUE), last = new AtomicLong();
        List<Thread> threads = new ArrayList<>();
        for (String member : members.split(";")) {
            List<TopicPartition> indexes = new ArrayList<>();
            for (String index : member.split(",")) {
                indexes.add(new TopicPartition(topic, Integer.parseInt(index)));
            }
            Thread thread = new Thread(
                    () -> drain(bootstrap, indexes, count, records, bytes, first, last));
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return (last.get() - first.get()) + " " + records.get() + " " + bytes.get();
    }

    static void drain(String bootstrap, List<TopicPartition> indexes, long count,
            AtomicLong records, AtomicLong bytes, AtomicLong first, AtomicLong last) {
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap,
                "enable.auto.commit", false, "auto.offset.reset", "earliest");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(indexes);
            consumer.seekToBeginning(indexes);
            long deadline = System.nanoTime() + LIMIT.toNanos();
            while (records.get() < count && System.nanoTime() < deadline) {
                long asked = System.nanoTime();
                long got = 0, size = 0;
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(WAIT)) {
                    got++;
                    size += Math.max(0, record.serializedKeySize()) + record.serializedValueSize();
                }
                if (got > 0) {
                    first.accumulateAndGet(asked, Math::min);
                    last.accumulateAndGet(System.nanoTime(), Math::max);
                    bytes.addAndGet(size);
                    records.addAndGet(got);
                }
            }
        }
    }
}
