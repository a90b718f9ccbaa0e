// A share group (KIP-932): many share consumers of one process on one topic.
//
// Arguments: bootstrap topic group members work-ms, then "default", or the records of a poll and
// the acquire mode (KIP-1206).
// stdout: "ready", then "w <value> <start ns> <end ns>" for each record that was worked on.

import java.io.BufferedOutputStream;
import java.io.PrintStream;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;

public class ShareWork {
    public static void main(String[] args) throws Exception {
        startAtTheBeginning(args[0], args[2]);
        PrintStream out = new PrintStream(new BufferedOutputStream(System.out, 1 << 16), false);
        for (int member = 0; member < Integer.parseInt(args[3]); member++) {
            new Thread(() -> work(args, out)).start();
        }
        System.out.println("ready");
        while (true) {
            Thread.sleep(50);
            synchronized (out) {
                out.flush();
            }
        }
    }

    static void startAtTheBeginning(String bootstrap, String group) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
            AlterConfigOp set = new AlterConfigOp(
                    new ConfigEntry("share.auto.offset.reset", "earliest"),
                    AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all().get();
        }
    }

    static void work(String[] args, PrintStream out) {
        long workMs = Long.parseLong(args[4]);
        Map<String, Object> config = new HashMap<>(
                Map.of("bootstrap.servers", args[0], "group.id", args[2]));
        if (!args[5].equals("default")) {
            config.put("max.poll.records", args[5]);
            config.put("share.acquire.mode", args[6]);
        }
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(
                config, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(args[1]));
            while (true) {
                for (ConsumerRecord<String, String> record
                        : consumer.poll(Duration.ofMillis(500))) {
                    long start = System.nanoTime();
                    Thread.sleep(workMs);
                    String line = "w " + record.value() + " " + start + " " + System.nanoTime();
                    synchronized (out) {
                        out.println(line);
                    }
                }
            }
        } catch (InterruptedException stopped) {
            throw new IllegalStateException(stopped);
        }
    }
}
