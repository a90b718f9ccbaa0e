// Confluent's parallel-consumer: one process, one consumer, order by key, many threads.
//
// Arguments: bootstrap topic group concurrency work-ms.
// stdout: "ready", then "w <value> <start ns> <end ns>" for each record that was worked on.

import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.io.BufferedOutputStream;
import java.io.PrintStream;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

public class ParallelWork {
    public static void main(String[] args) throws Exception {
        long workMs = Long.parseLong(args[4]);
        PrintStream out = new PrintStream(new BufferedOutputStream(System.out, 1 << 16), false);
        Map<String, Object> config = Map.of("bootstrap.servers", args[0], "group.id", args[2],
                "enable.auto.commit", false, "auto.offset.reset", "earliest");
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(
                config, new StringDeserializer(), new StringDeserializer());
        ParallelStreamProcessor<String, String> processor =
                ParallelStreamProcessor.createEosStreamProcessor(
                        ParallelConsumerOptions.<String, String>builder()
                                .ordering(ParallelConsumerOptions.ProcessingOrder.KEY)
                                .maxConcurrency(Integer.parseInt(args[3]))
                                .consumer(consumer)
                                .build());
        processor.subscribe(List.of(args[1]));
        processor.poll(context -> {
            long start = System.nanoTime();
            try {
                Thread.sleep(workMs);
            } catch (InterruptedException stopped) {
                throw new IllegalStateException(stopped);
            }
            String line = "w " + context.value() + " " + start + " " + System.nanoTime();
            synchronized (out) {
                out.println(line);
            }
        });
        System.out.println("ready");
        while (true) {
            Thread.sleep(50);
            synchronized (out) {
                out.flush();
            }
        }
    }
}
