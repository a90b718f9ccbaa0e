// Stock share consumers (KIP-932): driven by lines on stdin, or by themselves.
//
// ShareMember BOOTSTRAP
//   Each line of stdin is "NAME open GROUP TOPIC [key=value...]" or "NAME COMMAND...", for any
//   number of consumers, each with a thread. Commands: "poll MS", "ack [PARTITION:]OFFSET [TYPE]",
//   "commitSync", "commitAsync", "lock", "close"; "kill" alone ends the process at once.
//   A line of JSON answers each command, and one reports each acknowledgement callback.
//
// ShareMember BOOTSTRAP GROUP TOPIC --members N [--name PREFIX] [--work-ms MS] [--max-poll N]
//     [--mode batch_optimized|record_limit] [--ack implicit|explicit|sync|renew]
//     [--release P] [--reject P] [--seed N] [key=value...]
//   N consumers work until stdin ends. Fields of a line, separated by spaces: event, nanoseconds of
//   System.nanoTime, milliseconds of the wall clock, member, and then
//     S offset partition key deliveryCount   work on a record starts
//     R offset partition key                 its lock is renewed in the middle of the work
//     E offset partition key type            work ends, before the acknowledgement is sent
//     C offset partition result              the callback: "ok", or the error
//     J, L, X and a text                     it has joined, left, or got an error
//
// A line is one write, without a buffer: what was written before a kill -9 is not lost.

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;

public class ShareMember {
    private static final FileOutputStream OUT = new FileOutputStream(FileDescriptor.out);

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        if (args.length == 1) {
            drive(args[0], in);
        } else {
            work(args, in);
        }
    }

    private static synchronized void print(String line) {
        try {
            OUT.write((line + "\n").getBytes(StandardCharsets.UTF_8));
        } catch (IOException closed) {
            Runtime.getRuntime().halt(1);
        }
    }

    private static KafkaShareConsumer<String, String> open(
            String bootstrap, String group, String topic, Map<String, String> settings) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("group.id", group);
        config.putAll(settings);
        KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(
            config, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(topic.split(",")));
        return consumer;
    }

    private static Map<String, String> settings(String[] words, int from) {
        Map<String, String> settings = new HashMap<>();
        for (int at = from; at < words.length; at++) {
            String[] setting = words[at].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        return settings;
    }

    private static String nameOf(Throwable error) {
        return error == null ? "ok" : error.getClass().getSimpleName();
    }

    // ---------------------------------------------------------------- driven by lines

    private static void drive(String bootstrap, BufferedReader in) throws Exception {
        Map<String, Driven> members = new HashMap<>();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.trim().split(" +");
            if (words[0].equals("kill")) {
                Runtime.getRuntime().halt(137);
            }
            members.computeIfAbsent(words[0], name -> new Driven(bootstrap, name)).commands.put(words);
        }
        for (Driven member : members.values()) {
            member.commands.put(new String[] {member.name, "end"});
            member.thread.join();
        }
    }

    private static final class Driven {
        final String bootstrap;
        final String name;
        final BlockingQueue<String[]> commands = new LinkedBlockingQueue<>();
        final Thread thread = new Thread(this::run);
        private final Map<String, ConsumerRecord<String, String>> polled = new HashMap<>();
        private KafkaShareConsumer<String, String> consumer;

        Driven(String bootstrap, String name) {
            this.bootstrap = bootstrap;
            this.name = name;
            thread.start();
        }

        private void run() {
            try {
                for (String[] words = commands.take(); !words[1].equals("end"); words = commands.take()) {
                    String command = words[1];
                    try {
                        answer(command, call(words));
                    } catch (KafkaException | IllegalStateException | IllegalArgumentException failed) {
                        answer(command, ",\"error\":" + quoted(nameOf(failed))
                            + ",\"message\":" + quoted(failed.getMessage()));
                    }
                }
                close();
            } catch (InterruptedException stopped) {
                throw new IllegalStateException(stopped);
            }
        }

        private void answer(String event, String fields) {
            print("{\"member\":" + quoted(name) + ",\"event\":" + quoted(event) + fields + "}");
        }

        private String call(String[] words) {
            switch (words[1]) {
                case "open" -> {
                    Map<String, String> settings = settings(words, 4);
                    String place = settings.getOrDefault("bootstrap.servers", bootstrap);
                    consumer = ShareMember.open(place, words[2], words[3], settings);
                    consumer.setAcknowledgementCommitCallback(this::onCommitted);
                }
                case "poll" -> {
                    return poll(Duration.ofMillis(Long.parseLong(words[2])));
                }
                case "ack" -> acknowledge(words);
                case "commitSync" -> {
                    return committed();
                }
                case "commitAsync" -> consumer.commitAsync();
                case "lock" -> {
                    Optional<Integer> lock = consumer.acquisitionLockTimeoutMs();
                    return ",\"lockTimeoutMs\":" + lock.map(String::valueOf).orElse("null");
                }
                case "close" -> close();
                default -> throw new IllegalArgumentException(words[1]);
            }
            return "";
        }

        private void close() {
            if (consumer != null) {
                KafkaShareConsumer<String, String> closing = consumer;
                consumer = null;
                closing.close();
            }
        }

        private String poll(Duration timeout) {
            ConsumerRecords<String, String> records = consumer.poll(timeout);
            List<String> shown = new ArrayList<>();
            for (ConsumerRecord<String, String> record : records) {
                polled.put(record.partition() + ":" + record.offset(), record);
                shown.add("{\"partition\":" + record.partition() + ",\"offset\":" + record.offset()
                    + ",\"key\":" + quoted(record.key()) + ",\"value\":" + quoted(record.value())
                    + ",\"deliveryCount\":" + record.deliveryCount().map(String::valueOf).orElse("null")
                    + "}");
            }
            return ",\"records\":[" + String.join(",", shown) + "],\"lockTimeoutMs\":"
                + consumer.acquisitionLockTimeoutMs().map(String::valueOf).orElse("null");
        }

        private void acknowledge(String[] words) {
            String place = words[2].contains(":") ? words[2] : "0:" + words[2];
            ConsumerRecord<String, String> record = polled.get(place);
            if (record == null) {
                throw new IllegalArgumentException("not polled: " + place);
            }
            if (words.length < 4) {
                consumer.acknowledge(record);
            } else {
                consumer.acknowledge(record, AcknowledgeType.valueOf(words[3]));
            }
        }

        private String committed() {
            Map<TopicIdPartition, Optional<KafkaException>> results = consumer.commitSync();
            List<String> shown = new ArrayList<>();
            results.forEach((partition, error) -> shown.add(
                quoted(String.valueOf(partition.partition())) + ":" + quoted(nameOf(error.orElse(null)))));
            return ",\"results\":{" + String.join(",", shown) + "}";
        }

        private void onCommitted(Map<TopicIdPartition, Set<Long>> offsets, Exception error) {
            offsets.forEach((partition, those) -> answer("callback",
                ",\"partition\":" + partition.partition()
                    + ",\"offsets\":" + those.stream().sorted().toList()
                    + ",\"result\":" + quoted(nameOf(error))));
        }

        private static String quoted(String text) {
            if (text == null) {
                return "null";
            }
            StringBuilder made = new StringBuilder("\"");
            for (char each : text.toCharArray()) {
                if (each == '"' || each == '\\') {
                    made.append('\\').append(each);
                } else if (each < ' ') {
                    made.append(String.format("\\u%04x", (int) each));
                } else {
                    made.append(each);
                }
            }
            return made.append('"').toString();
        }
    }

    // ---------------------------------------------------------------- driven by itself

    private static void work(String[] args, BufferedReader in) throws Exception {
        Map<String, String> options = new HashMap<>();
        List<String> settings = new ArrayList<>();
        for (int at = 3; at < args.length; at++) {
            if (args[at].startsWith("--")) {
                options.put(args[at].substring(2), args[++at]);
            } else {
                settings.add(args[at]);
            }
        }
        Map<String, String> config = settings(settings.toArray(new String[0]), 0);
        config.put("max.poll.records", options.getOrDefault("max-poll", "500"));
        config.put("share.acquire.mode", options.getOrDefault("mode", "batch_optimized"));
        String ack = options.getOrDefault("ack", "implicit");
        config.put("share.acknowledgement.mode", ack.equals("implicit") ? "implicit" : "explicit");
        List<Worker> workers = new ArrayList<>();
        for (int number = 0; number < Integer.parseInt(options.get("members")); number++) {
            String name = options.getOrDefault("name", "m") + number;
            workers.add(new Worker(args, name, ack, options, config));
        }
        workers.forEach(worker -> worker.thread.start());
        while (in.readLine() != null) {
        }
        for (Worker worker : workers) {
            worker.stopping = true;
        }
        for (Worker worker : workers) {
            worker.thread.join();
        }
    }

    private static final class Worker {
        final Thread thread = new Thread(this::run);
        volatile boolean stopping;
        private final String[] args;
        private final String name;
        private final String ack;
        private final Map<String, String> config;
        private final long workMs;
        private final double release;
        private final double reject;
        private final Random random;
        private final Map<String, Short> renewed = new HashMap<>();

        Worker(String[] args, String name, String ack, Map<String, String> options,
                Map<String, String> config) {
            this.args = args;
            this.name = name;
            this.ack = ack;
            this.config = new HashMap<>(config);
            this.config.put("client.id", name);
            workMs = Long.parseLong(options.getOrDefault("work-ms", "0"));
            release = Double.parseDouble(options.getOrDefault("release", "0"));
            reject = Double.parseDouble(options.getOrDefault("reject", "0"));
            random = new Random(Long.parseLong(options.getOrDefault("seed", "0")) + name.hashCode());
        }

        private void note(String event, Object... fields) {
            StringBuilder line = new StringBuilder(event).append(' ').append(System.nanoTime())
                .append(' ').append(System.currentTimeMillis()).append(' ').append(name);
            for (Object each : fields) {
                line.append(' ').append(String.valueOf(each).replace('\n', ' '));
            }
            print(line.toString());
        }

        private void run() {
            try (KafkaShareConsumer<String, String> consumer =
                    open(args[0], args[1], args[2], config)) {
                consumer.setAcknowledgementCommitCallback((offsets, error) ->
                    offsets.forEach((place, those) -> those.stream().sorted().forEach(
                        offset -> note("C", offset, place.partition(), nameOf(error)))));
                note("J");
                while (!stopping) {
                    try {
                        pollOnce(consumer);
                    } catch (WakeupException woken) {
                        continue;
                    } catch (KafkaException | IllegalStateException failed) {
                        note("X", failed);
                        Thread.sleep(100);
                    }
                }
            } catch (InterruptedException | RuntimeException failed) {
                note("X", failed);
            }
            note("L");
        }

        private void pollOnce(KafkaShareConsumer<String, String> consumer) throws InterruptedException {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                short count = record.deliveryCount().orElse((short) -1);
                String place = record.partition() + ":" + record.offset();
                boolean goesOn = ack.equals("renew") && renewed.getOrDefault(place, (short) 0) == count;
                if (!goesOn) {
                    note("S", record.offset(), record.partition(), keyOf(record), count);
                }
                Thread.sleep(ack.equals("renew") ? workMs / 2 : workMs);
                if (ack.equals("renew") && !goesOn) {
                    renewed.put(place, count);
                    note("R", record.offset(), record.partition(), keyOf(record));
                    consumer.acknowledge(record, AcknowledgeType.RENEW);
                    continue;
                }
                renewed.remove(place);
                AcknowledgeType type = pick();
                note("E", record.offset(), record.partition(), keyOf(record), type.name());
                if (!ack.equals("implicit")) {
                    consumer.acknowledge(record, type);
                }
                if (ack.equals("sync")) {
                    consumer.commitSync();
                }
            }
        }

        private static String keyOf(ConsumerRecord<String, String> record) {
            return record.key() == null ? "-" : record.key();
        }

        private AcknowledgeType pick() {
            double drawn = ack.equals("implicit") ? 1 : random.nextDouble();
            if (drawn < release) {
                return AcknowledgeType.RELEASE;
            }
            return drawn < release + reject ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT;
        }
    }
}
